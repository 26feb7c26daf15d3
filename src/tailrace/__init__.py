"""Tailrace: every committed change of a PostgreSQL database, streamed to where it is needed."""

__version__ = "0.1.0"
