"""The durable log: one appender, any number of readers, in any number of processes.

From the bottom: `store` (files), `format` (bytes to values and back: entries, segments, index,
mark), `schema_book` (schemas in force), `recovery` and `appender` (writing), `segments`, `seek` and
`reader` (reading), `retention` and `verify`. `docs/formats/log.md` specifies every byte.
"""
