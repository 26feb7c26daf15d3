"""The capture loop: receive from one replication slot, append to the log, fsync, acknowledge.

From the bottom: `replication` (the connection), `batch` and `assemble` (messages to entries),
`flusher` (the thread that writes), `session` (one connection), `reconcile` (may this log continue
on this slot) and `capture` (session after session). Everything that asks the source in SQL is in
`tailrace.postgres`.
"""
