"""Bytes ⇄ values: pgoutput messages and streaming replication frames.

Nothing in here does I/O, reads a clock or logs, and `MalformedError` is the only error that leaves
it. What a parser accepts, its writer gives back byte for byte.
"""
