"""The threads of pipelines with Creek's shape: one publishes schemas, one answers requests."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tailrace.creek.answers import Answers
from tailrace.creek.cache import SchemaCache
from tailrace.creek.versions import Versions
from tailrace.creek.watcher import Watcher
from tailrace.jetstream.requests import Listener
from tailrace.postgres.session import Session
from tailrace.schemas.follow import follow
from tailrace.tables import Tables

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from tailrace.config import Config


def parts(config: Config) -> Iterator[tuple[str, Callable[[threading.Event], None]]]:
    """The threads of a config, by name. Each runs until it is stopped; it may be started again."""
    for name, pipeline in config.pipelines.items():
        if pipeline.shape == "creek":
            namespaced = pipeline.format == "avro"
            cache = SchemaCache(config.data / "creek", name, namespaced=namespaced)
            tables = Tables(pipeline.tables)
            versions = Versions(config.log.path, tables, cache, namespaced=namespaced)
            yield f"creek {name}", partial(_watch, config, name, versions)
            yield f"creek requests {name}", partial(_answer, config, name, versions)


def _watch(config: Config, name: str, versions: Versions, stop: threading.Event) -> None:
    versions.rewind()
    watcher = Watcher(config, name, versions)
    try:
        follow([watcher.publish], watcher.changed, stop)
    finally:
        watcher.close()


def _answer(config: Config, name: str, versions: Versions, stop: threading.Event) -> None:
    pipeline = config.pipelines[name]
    session = Session(config, "tailrace creek requests")
    Listener(pipeline.jetstream, Answers(pipeline.creek_layout, versions, session), stop).run()
