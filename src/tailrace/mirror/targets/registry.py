"""The target of an address: `sqlite:///local.db`, `duckdb:///local.db`, `postgresql://host/db`.

A target is a module or package that describes itself with a `TargetType`. A built-in target has one
line at the end of this file. Other packages add targets through the entry-point group
`tailrace.mirror_targets`: the entry point has the name of the URL scheme, and loads a `TargetType`.
It is loaded only when an address has that scheme.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from tailrace.client.names import Table
from tailrace.errors import ConfigError
from tailrace.mirror.targets import duckdb, postgresql, sqlite
from tailrace.mirror.targets.target import TargetType

if TYPE_CHECKING:
    from tailrace.mirror.targets.target import Target

GROUP = "tailrace.mirror_targets"
_TARGETS: dict[str, TargetType] = {}


def register(target: TargetType) -> None:
    """Add a target under its URL schemes."""
    for scheme in target.schemes:
        _TARGETS[scheme] = target


def target_of(url: str, table: str) -> Target:
    """The target at an address, for a table under this name.

    >>> type(target_of("sqlite:///local.db", "users")).__name__
    'Sqlite'
    """
    name = Table.parse(table)
    scheme, separator, _ = url.partition("://")
    target = _find(scheme.lower()) if separator else None
    if target is None:
        # Without the address itself: it may contain a password.
        raise ConfigError("--to must be the address of a target", hint=_hint())
    try:
        return target.open(url, name)
    except ModuleNotFoundError as error:
        if not target.needs:
            raise
        raise ConfigError(
            f"the target {scheme} needs the library {error.name}, which is not installed",
            hint=f"pip install '{target.needs}'",
        ) from error


def _find(scheme: str) -> TargetType | None:
    """The target of a URL scheme; loads the target of another package if needed."""
    if scheme not in _TARGETS:
        for entry_point in entry_points(group=GROUP, name=scheme):
            target = entry_point.load()
            if not isinstance(target, TargetType):
                raise ConfigError(
                    f"the entry point {entry_point.value} of {GROUP} must be a TargetType, "
                    f"got {type(target).__name__}"
                )
            register(target)
    return _TARGETS.get(scheme)


def _hint() -> str:
    examples = dict.fromkeys(target.example for target in _TARGETS.values())
    return f"Write {', '.join(examples)}."


register(sqlite.TARGET)
register(duckdb.TARGET)
register(postgresql.TARGET)
