"""Pieces of SQL that all targets share. Names are quoted here and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable


def quote(name: str) -> str:
    """A name in double quotes.

    >>> print(quote('odd "name"'))
    "odd ""name\"""
    """
    if "\0" in name:
        raise ConfigError(f"{name!r} is not a valid name: it contains a NUL character")
    return '"{}"'.format(name.replace('"', '""'))


def name_list(names: Iterable[str]) -> str:
    """Quoted names, separated by commas.

    >>> print(name_list(["a", "b"]))
    "a", "b"
    """
    return ", ".join(map(quote, names))


def assignments(names: Iterable[str], source: str) -> str:
    """The list after SET: each column from the same column of a source.

    >>> print(assignments(["a"], "excluded"))
    "a" = excluded."a"
    """
    return ", ".join(f"{quote(name)} = {source}.{quote(name)}" for name in names)


def join_names(names: Iterable[str], template: str, separator: str = " AND ") -> str:
    """A template filled in with each name.

    >>> print(join_names(["a", "b"], "{} = ?"))
    "a" = ? AND "b" = ?
    """
    return separator.join(template.format(quote(name)) for name in names)
