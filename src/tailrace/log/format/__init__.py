"""The bytes of the log: entries, segments, index and durable mark, as in docs/formats/log.md."""
