"""Bytes to values and back: pgoutput messages and streaming replication frames.

No I/O, no clock, no logging; `MalformedError` is the only error. A writer reproduces byte for byte
what its parser accepts.
"""
