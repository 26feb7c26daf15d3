"""NATS JetStream: one message per change, deduplicated by its id, read back after a cut.

settings      the keys of `sink:` with `type: nats`
destination   the subject of a message, filled from a template
sink          `JetStream`, which implements the contract of `tailrace.sinks.contract`

The connection, the bulk path and the stream itself are in `tailrace.jetstream`, which services and
consumers share.
"""
