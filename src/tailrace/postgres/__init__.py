"""Sessions, catalogs, publication and slot of the source.

`connection` (sessions and errors), `catalog` (shared catalog queries), `relations` and
`table_state` (tables), `publication`, `slot`, `condition` (of backfills), `bootstrap`
(`tailrace init`), `membership` and `joining` (`tailrace table`), `preflight` (`tailrace doctor`).
The replication stream is in `tailrace.capture`; snapshots, backfills, drift and Creek have queries
of their own.
"""
