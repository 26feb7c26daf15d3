"""Syntaxes: JSON and MessagePack. Columns of PostgreSQL's text → encoded values."""
