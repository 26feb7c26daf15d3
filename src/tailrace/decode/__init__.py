"""Decodes entries of the log into columns of changes with numpy and pyarrow, without row loops.

From the bottom: `columns` (binary columns), `rows` (row images), `messages` (the messages of an
entry), `annotations`, `decoder` (entries to groups), `types` and `typed` (text to Arrow types).
"""
