"""Stage ②: the durable log. One appender, any number of readers, in any number of processes.

The ladder, from the bottom: `store` (files), `format` (bytes ⇄ values), `index` and `mark`,
`segment`, then `appender` and `reader`. `docs/formats/log.md` specifies every byte.
"""
