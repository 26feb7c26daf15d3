"""The JetStream streams of a pipeline: of its changes, and of its snapshots.

Each component that publishes creates its stream if it is missing. `create_streams` does it before
there is anything to publish, so that consumers can connect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.jetstream import stream
from tailrace.jetstream.bulk.snapshot_messages import OWNER

if TYPE_CHECKING:
    from tailrace.config import Pipeline
    from tailrace.jetstream.settings import JetStreamSettings


def snapshot_sink(pipeline: Pipeline) -> JetStreamSettings:
    """The pipeline's NATS server with the stream for its snapshots."""
    assert pipeline.snapshots is not None
    subject = "init.snap.{table}.x.0"
    if pipeline.shape == "creek":
        subject = f"{pipeline.creek_layout.template('snap')}.x"
    changed = {"stream": pipeline.snapshots.stream, "subject": subject, "atomic": "none"}
    return pipeline.jetstream.model_copy(update=changed)


def create_streams(name: str, pipeline: Pipeline) -> None:
    """Create the streams that are missing, and check those that exist."""
    stream.create(pipeline.jetstream, name=name, owner=name)
    if pipeline.snapshots is not None:
        stream.create(snapshot_sink(pipeline), name=name, owner=OWNER)
