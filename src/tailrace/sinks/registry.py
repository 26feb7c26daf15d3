"""The kinds of sinks: one line each. Other packages register theirs as `tailrace.sinks`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.registry import Registry

if TYPE_CHECKING:
    from tailrace.sinks.sink_type import SinkType

SINKS: Registry[SinkType[Any]] = Registry(
    "sink",
    group="tailrace.sinks",
    built_in={
        "nats": "tailrace.sinks.nats.sink_type:SINK",
        "kafka": "tailrace.sinks.kafka.sink_type:SINK",
        "http": "tailrace.sinks.http.sink_type:SINK",
        "redis": "tailrace.sinks.redis.sink_type:SINK",
        "rabbitmq": "tailrace.sinks.rabbitmq.sink_type:SINK",
        "postgres": "tailrace.sinks.postgres.sink_type:SINK",
        "file": "tailrace.sinks.file.sink_type:SINK",
        "opensearch": "tailrace.sinks.opensearch.sink_type:SINK",
        "elasticsearch": "tailrace.sinks.elasticsearch.sink_type:SINK",
        "sqs": "tailrace.sinks.sqs.sink_type:SINK",
        "sns": "tailrace.sinks.sns.sink_type:SINK",
        "kinesis": "tailrace.sinks.kinesis.sink_type:SINK",
        "eventbridge": "tailrace.sinks.eventbridge.sink_type:SINK",
        "pubsub": "tailrace.sinks.pubsub.sink_type:SINK",
        "pull": "tailrace.sinks.pull.sink_type:SINK",
        "shadow": "tailrace.shadow.sink_type:SINK",
    },
)
