"""Mirrors: local copies of tables that follow their source, in SQLite, DuckDB or PostgreSQL.

    async with tailrace.client.connect("nats://localhost:4222") as client:
        await Mirror(client, "users", target_of("sqlite:///local.db", "users")).run()

mirror      load a snapshot, then apply the changes
schema      what to do when the table is altered
layout      the columns and the key of a mirrored table
net         the net effect of changes, per key
work_queue  two steps of work in parallel, with a short queue between them
status      progress figures
sources/    where rows and changes come from: the contract, the registry, one file per source
targets/    where rows go: the contract, the registry, one package per target

A mirror reads NATS only, through a source. It has no connection to the source database.
"""

from tailrace.mirror.mirror import Mirror, cancel_all
from tailrace.mirror.sources.source import MirrorSource
from tailrace.mirror.status import Phase, Status
from tailrace.mirror.targets.registry import target_of
from tailrace.mirror.targets.target import Target, TargetType

__all__ = [
    "Mirror",
    "MirrorSource",
    "Phase",
    "Status",
    "Target",
    "TargetType",
    "cancel_all",
    "target_of",
]
