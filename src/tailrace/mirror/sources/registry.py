"""The source of an address: `nats://host:4222`, with parameters that select another source.

A source is one file that describes itself with a `SourceType`. A built-in source has one line at
the end of this file. Other packages add sources through the entry-point group
`tailrace.mirror_sources`: the entry point has the name of the parameter that selects the source,
and loads a `SourceType`. It is loaded only when an address has that parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Self
from urllib.parse import parse_qsl

from tailrace.errors import ConfigError
from tailrace.mirror.sources import bridge, creek
from tailrace.mirror.sources.source import SourceAddress, SourceOptions, SourceType

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from tailrace.mirror.sources.source import MirrorSource

GROUP = "tailrace.mirror_sources"
_SOURCES: dict[str, SourceType] = {}


def register(source: SourceType) -> None:
    """Add a source."""
    _SOURCES[source.selector] = source


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedSource:
    """A source, and the address to open it with.

    >>> source = SelectedSource.parse("nats://a,nats://b?creek=CREEK&database=shop")
    >>> source.type.selector, source.address.url, source.address.parameters["database"]
    ('creek', 'nats://a,nats://b', 'shop')
    """

    type: SourceType
    address: SourceAddress

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an address. NATS itself has no parameters after the question mark."""
        url, mark, query = text.partition("?")
        parameters = dict(parse_qsl(query, keep_blank_values=True))
        selector = next((name for name in parameters if name and _is_selector(name)), None)
        source = _SOURCES[selector or ""]
        unknown = sorted(parameters.keys() - {selector} - source.parameters)
        # Errors never show the address: it may contain a password.
        if unknown:
            raise ConfigError(f"--from has the unknown parameter {unknown[0]!r}", hint=_hint())
        if mark and not parameters:
            raise ConfigError("--from has no parameter after the question mark", hint=_hint())
        if empty := [name for name, value in parameters.items() if not value]:
            raise ConfigError(f"the parameter {empty[0]!r} of --from is empty", hint=_hint())
        return cls(type=source, address=SourceAddress(url=url, parameters=parameters))

    def open(self, options: SourceOptions) -> AbstractAsyncContextManager[MirrorSource]:
        """Connect to the source until the block ends."""
        return self.type.open(self.address, options)


def _is_selector(parameter: str) -> bool:
    """Whether a parameter selects a source; loads the source of another package if needed."""
    if parameter not in _SOURCES:
        for entry_point in entry_points(group=GROUP, name=parameter):
            source = entry_point.load()
            if not isinstance(source, SourceType):
                raise ConfigError(
                    f"the entry point {entry_point.value} of {GROUP} must be a SourceType, "
                    f"got {type(source).__name__}"
                )
            register(source)
    return parameter in _SOURCES


def _hint() -> str:
    return "Write " + ", ".join(source.example for source in _SOURCES.values())


register(bridge.SOURCE)
register(creek.SOURCE)
