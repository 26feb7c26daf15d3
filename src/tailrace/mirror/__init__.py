"""A local copy of a table that keeps current: in SQLite, DuckDB or PostgreSQL.

    async with tailrace.client.connect("nats://localhost:4222") as client:
        await Mirror(client, "users", target_of("sqlite:///local.db", "users")).run()

mirror      bootstrap from a snapshot, then follow the changes
source      the contract of a source
line        two steps of work, side by side
layout      what a table looks like
schema      what to do when that changes
net         what changes come to, by key
values      values of messages as targets take them
target      the contract of a target
sources     addresses as sources
targets     addresses as targets
sql         pieces of SQL
copytext    columns as the text of COPY
sqlite  duckdb  postgresql      the targets
turn        whose turn it is to write to a file
failures    what can be wrong with a target
status      how a mirror is doing
"""

from tailrace.mirror.mirror import Mirror, end
from tailrace.mirror.sources.source import MirrorSource
from tailrace.mirror.status import Phase, Status
from tailrace.mirror.targets.registry import target_of
from tailrace.mirror.targets.target import Target

__all__ = ["Mirror", "MirrorSource", "Phase", "Status", "Target", "end", "target_of"]
