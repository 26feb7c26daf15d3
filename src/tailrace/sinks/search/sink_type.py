"""What the sinks `opensearch` and `elasticsearch` have in common as kinds of sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from tailrace.errors import TailraceError
from tailrace.finding import Finding, error
from tailrace.sinks.search.destination import IndexTemplate, is_index, target_of
from tailrace.sinks.search.settings import SearchSettings
from tailrace.sinks.sink_type import Promises, SinkType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.sinks.contract import Lane, Sink

# ruff: noqa: PLC0415 - the client is an extra, and is loaded where a sink is opened

S = TypeVar("S", bound=SearchSettings)


class SearchType(SinkType[S]):
    """The newest state of rows as documents, or a document per message."""

    promises = Promises(
        delivery="effectively once: a document is written again with the same content at most",
        order=(
            "per document: a newer state is never replaced by an older one. Documents are written "
            "in any order"
        ),
        duplicates=(
            "None: the position is the version of a document, or with `mode: append` its id. A "
            "deleted document may exist again for a while if a batch is repeated after "
            "`index.gc_deletes`."
        ),
        largest_message="`max_message_bytes`, 5 MiB by default; a larger one is parked",
        batch="`batch_rows` messages in a bulk request, `concurrency` requests at a time",
    )

    def destination(self, template: str, *, database: str) -> IndexTemplate:
        """Fills a template of indices."""
        return IndexTemplate(template, database=database)

    def misfit(self, settings: S, *, shape: str, encoding: str) -> str:
        """Documents of rows come from shape `row`; a document is JSON."""
        if settings.mode == "documents" and (shape, encoding) != ("row", "json"):
            return (
                f"sink {self.name} with `mode: documents` needs `shape: row` and `encoding: json`"
            )
        if settings.mode == "append" and settings.payload == "json" and encoding != "json":
            return f"sink {self.name} needs `encoding: json`: set it, or `payload: binary`"
        return ""

    def open(self, settings: S, lane: Lane) -> Sink:
        """A sink of a lane."""
        from tailrace.sinks.search.sink import Search

        return Search(settings, lane)

    def probe(self, settings: S, *, name: str) -> None:
        """The cluster must answer, and take the login."""
        from tailrace.sinks.search.server_check import probe

        probe(settings, name=name)

    def check(self, settings: S) -> Iterator[Finding]:
        """Which product and version answers."""
        from tailrace.sinks.search.server_check import inspect

        try:
            yield from inspect(settings, title=self.title)
        except TailraceError as failed:
            yield error(str(failed), failed.hint)

    def check_destinations(self, settings: S, destinations: Sequence[str]) -> Iterator[Finding]:
        """Whether they are names of indices."""
        for each in dict.fromkeys(destinations):
            name = target_of(each.encode()).name if settings.mode == "documents" else each
            if not is_index(name):
                yield error(f"{name!r} is not the name of an index", "Correct `index` of the sink.")
