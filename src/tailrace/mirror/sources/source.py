"""The contract of a source: where a mirror's rows and changes come from.

`tailrace.client.Client` is one, for pipelines of shape `bridge`, and `tailrace.client.creek.Feed`
is one, for Creek's producers. A mirror knows neither NATS nor what a message looks like.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tailrace.client import Batch, Meta, Schema, State
    from tailrace.snapshot.job import Form


class RowChunk(Protocol):
    """Some thousand rows of a snapshot."""

    @property
    def snapshot_id(self) -> str:
        """Whose rows they are."""
        ...

    @property
    def columns(self) -> Sequence[str] | None:
        """Of rows in the text that COPY reads, which `plain` has; None: `rows` has them."""
        ...

    def plain(self) -> bytes:
        """The text."""
        ...

    def rows(self) -> list[dict[str, Any]]:
        """The rows, with values as messages have them; documents may be `Json`."""
        ...


class Chunks(Protocol):
    """The chunks of a snapshot.

    One with another `snapshot_id` belongs to a snapshot that has taken the place of the first.
    """

    @property
    def meta(self) -> Meta | None:
        """What the snapshot is; known at its end."""
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_: object) -> None: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> RowChunk: ...


class Batches(Protocol):
    """Changes, in whole transactions, each batch with the place behind it."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_: object) -> None: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> Batch: ...


class MirrorSource(Protocol):
    """Tables, each with a description, a snapshot on request, and the changes behind it."""

    async def schema(self, table: str) -> Schema | None:
        """What a table looks like, as far as it is known by now; None: there is no such table."""
        ...

    async def schemas(self) -> Mapping[str, Schema]:
        """What tables there are."""
        ...

    async def stream_created(self) -> str | None:
        """Which stream the changes are in: another one has another time."""
        ...

    def chunks(self, table: str, *, form: Form) -> Chunks:
        """Ask for a snapshot. Rows may come in another form than the one that is wanted."""
        ...

    def transactions(self, table: str, state: State) -> Batches:
        """The changes that are not in what a state stands for. It does not end."""
        ...
