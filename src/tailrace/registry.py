"""Registries: things with a name that settings refer to, built in or from other packages.

A built-in thing is registered as itself or as `"module:ATTRIBUTE"`, which is imported when it is
first asked for: settings that name one sink do not load the client libraries of the others. Other
packages register theirs through an entry-point group in their pyproject.toml:

    [project.entry-points."tailrace.sinks"]
    example = "example_package.sink:SINK"
"""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.metadata import EntryPoints

T = TypeVar("T")


def load(path: str) -> Any:
    """The object that `module:ATTRIBUTE` names.

    >>> load("tailrace.errors:ConfigError").code
    'BAD_CONFIG'
    """
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def _entry_points(group: str) -> EntryPoints:
    # Loading this module takes 30 ms, and reading the metadata of all packages as long again.
    from importlib.metadata import entry_points  # noqa: PLC0415

    return entry_points(group=group)


class Registry(Generic[T]):
    """Things of one kind by name."""

    def __init__(self, kind: str, *, group: str, built_in: Mapping[str, T | str]) -> None:
        self.kind = kind
        self.group = group
        self.built_in = built_in
        self._loaded: dict[str, T] = {}

    def find(self, name: str) -> T:
        """The thing with this name; a ConfigError that names the nearest one if there is none."""
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def names(self) -> list[str]:
        """All names: built-in ones in their order, then those of other packages."""
        installed = {entry.name for entry in _entry_points(self.group)}
        return [*self.built_in, *sorted(installed - set(self.built_in))]

    def all(self) -> list[T]:
        """All things, in the order of their names."""
        return [self.find(name) for name in self.names()]

    def _load(self, name: str) -> T:
        # A built-in name cannot be replaced, and does not pay for looking up entry points.
        if name in self.built_in:
            built_in = self.built_in[name]
            found: T = load(built_in) if isinstance(built_in, str) else built_in
            return found
        for entry in _entry_points(self.group).select(name=name):
            return self._imported(name, entry.value, entry.load)
        names = self.names()
        close = difflib.get_close_matches(name, names, n=1)
        raise ConfigError(
            f"unknown {self.kind} {name!r}" + (f", did you mean {close[0]}?" if close else ""),
            hint=f"Known: {', '.join(names)}. Other packages register theirs as {self.group}.",
        )

    def _imported(self, name: str, value: str, load: Callable[[], T]) -> T:
        try:
            return load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"the {self.kind} {name} cannot be loaded from {value}: {error}",
                hint="Install the package that provides it again, with what it depends on.",
            ) from error
