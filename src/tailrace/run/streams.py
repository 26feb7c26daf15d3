"""Creates the JetStream streams of all pipelines when the system starts.

Consumers then find the streams before Spark has started and before the first change. A server that
is down is retried; pipelines do not wait for this service, because each sink also creates its own
stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from tailrace.errors import TailraceError
from tailrace.jetstream.settings import JetStreamSettings
from tailrace.run.services import restart_backoff
from tailrace.snapshot.service.streams import create_streams

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from tailrace.backoff import Backoff
    from tailrace.config import Config, Pipeline


def run(
    config: Config,
    stop: threading.Event,
    *,
    create: Callable[[str, Pipeline], None] = create_streams,
    backoff: Callable[[], Backoff] = restart_backoff,
) -> None:
    """Create the streams of every pipeline with a NATS sink; retry until all exist."""
    delays = backoff()
    waiting = {
        name: pipeline
        for name, pipeline in config.pipelines.items()
        if isinstance(pipeline.sink, JetStreamSettings)
    }
    while waiting and not stop.is_set():
        created = {name for name, pipeline in waiting.items() if _create(name, pipeline, create)}
        waiting = {name: waiting[name] for name in waiting.keys() - created}
        if waiting:
            stop.wait(delays.next_s())


def _create(name: str, pipeline: Pipeline, create: Callable[[str, Pipeline], None]) -> bool:
    try:
        create(name, pipeline)
    except TailraceError as error:
        structlog.get_logger().warning(
            "streams.not_created", pipeline=name, code=error.code, reason=str(error),
            hint=error.hint,
        )  # fmt: skip
        return False
    return True
