"""The log that a command works on."""

# ruff: noqa: PLC0415 - numpy is loaded when a command runs, not for --help

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.cli import options

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.log.store import LocalStore


def open_store(config: Path | None, log: Path | None) -> LocalStore:
    """The store of the log. Raises ConfigError if there is no log."""
    from tailrace.log.format.segment import SUFFIX
    from tailrace.log.reader import Log
    from tailrace.log.store import LocalStore

    path = options.settings(config, log=log).log.path
    store = LocalStore(path)
    if not any(name.endswith(SUFFIX) for name in store.names()):
        Log.open(path)
    return store
