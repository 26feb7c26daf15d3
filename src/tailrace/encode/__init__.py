"""Columns of changes → message bytes, column by column."""
