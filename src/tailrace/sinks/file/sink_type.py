"""What Tailrace knows about the sink `file`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import SinkRefusedError
from tailrace.sinks.file.destination import FolderTemplate
from tailrace.sinks.file.settings import FileSink
from tailrace.sinks.sink_type import Promises, SinkType

if TYPE_CHECKING:
    from tailrace.sinks.contract import Lane, Sink
    from tailrace.sinks.file.store import Store

# ruff: noqa: PLC0415 - fsspec is an extra, and is loaded where a sink is opened


class FileType(SinkType[FileSink]):
    """JSON Lines or Parquet in folders, local or in an object store."""

    name = "file"
    title = "Files"
    settings = FileSink
    promises = Promises(
        delivery="exactly once",
        order=(
            "per lane: by position within a file, and the names of files sort by position; files "
            "of several lanes overlap"
        ),
        duplicates=(
            "A record of the position is created before files have their final names, and a replay "
            "skips what it covers. A second sink of a lane is fenced if the store has conditional "
            "writes (local folders, S3, GCS and Azure have them); without them, a worker that "
            "wakes up can write its last files twice."
        ),
        largest_message="`max_message_bytes`, 5 MiB by default; a larger one is parked",
        batch="`roll_rows`, `roll_bytes` or `roll_s` per file; at most a micro-batch",
    )

    def destination(self, template: str, *, database: str) -> FolderTemplate:
        """Fills a template of folders."""
        return FolderTemplate(template, database=database)

    def stores_position(self, settings: FileSink) -> bool:
        """In the record that completes files."""
        del settings
        return True

    def open(self, settings: FileSink, lane: Lane) -> Sink:
        """Spools and records; the store is connected when the sink is opened."""
        from tailrace.sinks.file.sink import Files

        return Files(settings, lane, lambda: store_of(settings))

    def probe(self, settings: FileSink, *, name: str) -> None:
        """The store must answer. Nothing is written."""
        del name
        store = store_of(settings)
        try:
            store.check()
        finally:
            store.close()


def store_of(settings: FileSink) -> Store:
    """The store of a URL."""
    if settings.local:
        from tailrace.sinks.file.local import LocalFolder

        return LocalFolder(settings.folder, readable_by=settings.readable_by)
    try:
        from tailrace.sinks.file.objects import ObjectStore
    except ModuleNotFoundError as error:
        raise SinkRefusedError(
            f"{settings.url} needs fsspec, which is not installed",
            hint="pip install 'tailrace[file]', and the library of the store, such as s3fs",
        ) from error
    return ObjectStore(settings.url, settings.plain_options)


SINK = FileType()
