"""The contract of a source, and `SourceType`, which describes one to the registry.

`tailrace.client.Client` is a source for pipelines of shape `bridge`, `tailrace.client.creek.Feed`
one for Creek's producers. A mirror depends neither on NATS nor on the format of messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tailrace.client import Batch, Meta, Schema, State, StreamIdentity
    from tailrace.snapshot.job import Form


class RowChunk(Protocol):
    """Some thousand rows of a snapshot."""

    @property
    def snapshot_id(self) -> str:
        """The snapshot that the rows belong to."""
        ...

    @property
    def columns(self) -> Sequence[str] | None:
        """The columns of COPY's text, which `plain` returns. None: use `rows`."""
        ...

    def plain(self) -> bytes:
        """The rows in COPY's text format."""
        ...

    def rows(self) -> list[dict[str, Any]]:
        """The rows, with values as in messages; JSON documents may be `Json`."""
        ...


class RowChunks(Protocol):
    """The chunks of a snapshot.

    A chunk with another `snapshot_id` belongs to a snapshot that supersedes the first one.
    """

    @property
    def meta(self) -> Meta | None:
        """The metadata of the snapshot, set after the last chunk."""
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_: object) -> None: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> RowChunk: ...


class Batches(Protocol):
    """Changes in whole transactions; each batch has the state after it."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_: object) -> None: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> Batch: ...


class MirrorSource(Protocol):
    """Tables, each with a schema, snapshots on request, and the changes after a snapshot."""

    async def schema(self, table: str) -> Schema | None:
        """The newest known schema of a table; None if the table is unknown."""
        ...

    async def schemas(self) -> Mapping[str, Schema]:
        """The schemas of all known tables."""
        ...

    async def stream_identity(self) -> StreamIdentity | None:
        """What identifies the stream of changes; None if the stream is missing."""
        ...

    def chunks(self, table: str, *, form: Form) -> RowChunks:
        """Request a snapshot. The rows may have another form than the requested one."""
        ...

    def transactions(self, table: str, state: State) -> Batches:
        """The changes after a state. It does not end."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamNames:
    """The streams of a pipeline of shape `bridge`."""

    stream: str = "CDC"
    snapshots: str = "INIT"
    subjects: str = "cdc.{table}.*"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a source needs beside its address."""

    credentials: Path | None = None
    streams: StreamNames = StreamNames()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAddress:
    """An address: the URL of a server, and the parameters after the question mark."""

    url: str = field(repr=False)
    """It may include a password."""
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceType:
    """Describes a source to the registry."""

    selector: str
    """The URL parameter that selects this source; empty for the source without parameters."""
    parameters: frozenset[str] = frozenset()
    """Other URL parameters of the source."""
    example: str
    """An address, for hints."""
    open: Callable[[SourceAddress, SourceOptions], AbstractAsyncContextManager[MirrorSource]]
    """Connect to the source until the block ends."""
