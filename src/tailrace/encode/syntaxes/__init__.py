"""JSON and MessagePack: columns of PostgreSQL text as values of a syntax."""
