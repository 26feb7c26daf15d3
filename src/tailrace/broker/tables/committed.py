"""The offsets that groups have committed."""

from __future__ import annotations

COMMIT = """
INSERT INTO kafka.consumer_offsets
    (group_id, topic_id, partition_id, "offset", leader_epoch, metadata)
SELECT %s, * FROM unnest(%s::int[], %s::int[], %s::bigint[], %s::int[], %s::text[])
ON CONFLICT (group_id, topic_id, partition_id) DO UPDATE SET
    "offset" = excluded."offset", leader_epoch = excluded.leader_epoch,
    metadata = excluded.metadata, committed_at = now(), active_at = now()
"""
"""Group, then arrays: topic ids, partitions, offsets, leader epochs, metadata."""
