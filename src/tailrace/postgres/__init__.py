"""Everything that sends SQL to the source.

`connection` (sessions and errors), `catalog` (shared catalog queries), `relations` and
`table_state` (tables), `publication`, `slot`, `condition` (of backfills), `bootstrap`
(`tailrace init`), `membership` and `joining` (`tailrace table`), `preflight` (`tailrace doctor`).
Not the replication stream: that is `tailrace.capture`.
"""
