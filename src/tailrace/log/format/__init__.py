"""The formats of the log's files: entries, segments, index and durable mark.

`docs/formats/log.md` specifies them, and golden files of earlier releases test them.
"""
