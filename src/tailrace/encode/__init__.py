"""Encoding: columns of changes → message bytes, whole columns at a time.

`shapes` say what a message contains, `syntaxes` how a value is written (JSON, MessagePack), `creek`
is Creek's Avro. A message is joined from pieces (`pieces`): no Python code runs per row.
"""
