"""`tailrace mirror`: the command, and how it shows its progress."""

from tailrace.cli.mirror.command import mirror

__all__ = ["mirror"]
