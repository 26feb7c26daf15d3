"""Pieces of SQL that all targets write alike. Names are quoted here and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable


def quoted(name: str) -> str:
    """A name, whatever is in it.

    >>> print(quoted('odd "name"'))
    "odd ""name\"""
    """
    if "\0" in name:
        raise ConfigError(f"{name!r} cannot be a name")
    return '"{}"'.format(name.replace('"', '""'))


def listed(names: Iterable[str], of: str = "") -> str:
    """Names with commas between, of a table if one is given.

    >>> print(listed(["a", "b"]), listed(["a"], of="t"))
    "a", "b" t."a"
    """
    return ", ".join(f"{of}.{quoted(name)}" if of else quoted(name) for name in names)


def assigned(names: Iterable[str], source: str) -> str:
    """What follows SET: each column from the same one of a source.

    >>> print(assigned(["a"], "excluded"))
    "a" = excluded."a"
    """
    return ", ".join(f"{quoted(name)} = {source}.{quoted(name)}" for name in names)


def each(names: Iterable[str], form: str, between: str = " AND ") -> str:
    """A form filled in with each name.

    >>> print(each(["a", "b"], "{} = ?"))
    "a" = ? AND "b" = ?
    """
    return between.join(form.format(quoted(name)) for name in names)
