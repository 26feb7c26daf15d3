"""The capture loop: receive from one replication slot, append to the log, fsync, acknowledge.

From the bottom: `replication` (the connection), `batch` and `assemble` (messages to entries),
`load` (how long to collect), `flusher` (the thread that writes), `heartbeat`, `session` (one
connection), `reconcile` (may this log continue on this slot) and `capture` (session after session).
Catalog queries are in `tailrace.postgres`.
"""
