"""Shapes: what a message contains, one file per shape. Encodings say how it is written."""
