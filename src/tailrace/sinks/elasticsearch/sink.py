"""The sink of `elasticsearch` is the shared one. Workers load it by this name."""

from tailrace.sinks.search.sink import Search

__all__ = ["Search"]
