"""Frames: the rows that the source produces from the log: changes, one table, blocks, cells."""
