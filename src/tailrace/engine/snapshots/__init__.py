"""Snapshots on request: a message over NATS, and the table's rows arrive in a stream.

record    what is known of a snapshot, on disk, so that a crash continues it
maker     one snapshot from its beginning to its end, whatever fails in between
requests  the NATS side: who asks, and what they are answered
service   the two together, for one pipeline
"""
