"""Shapes: what a message contains, one file per shape. The encoding decides how it is written."""
