"""The faults that every sink is tested with, and the benches that cannot have one, and why."""

from __future__ import annotations

import enum


class Case(enum.Enum):
    """A fault. `tests/contract/test_faults.py` has a test for each."""

    REFUSED = "one message is refused"
    PARTIAL = "some messages of a request fail for now"
    ALWAYS = "one message fails for now, whenever it is sent"
    THROTTLED = "the destination asks to wait"
    CUTS = "connections are cut at random points"
    LOST_ANSWER = "the answer to a write is lost"
    STALL = "the server does not answer"
    ZOMBIE = "a sink that was replaced wakes up"


_FOLDER = "a folder has no connection: tests/integration/file fails each step of its store"
_DATABASE = "its store is a file: tests/faults/test_pull.py kills the processes that use it"
_CLUSTER = "clients connect to the addresses that the servers announce, past a proxy"
_ANSWERS_IN_WHOLE = "its server has one answer for all messages of a write"
_NEVER_ASKS = "its protocol has no answer that asks to wait"
_ASKS_LIBRARY = "the library of the store waits by itself, and the sink sees only the result"

_TRANSIENT_ERROR = "a failure that passes is an error of its task, and not the answer for a message"

_PROCESS = "its server is another process, which counts no answers: tests/integration/pubsub"

_FAILS_NOTHING = "its server is another process, which fails no message: tests/faults"
_WITHOUT_CONNECTION = {
    "file": _FOLDER,
    "file-memory": _FOLDER,
    "pull": _DATABASE,
    "redis-cluster": _CLUSTER,
}
EXEMPT: dict[Case, dict[str, str]] = {
    Case.REFUSED: {},
    Case.PARTIAL: {
        "nats": _ANSWERS_IN_WHOLE,
        "kafka": "librdkafka sends failed messages again by itself",
        "kafka-transactional": "librdkafka sends failed messages again by itself",
        "http": "a request has one message; with arrays: the bench http-array",
        "redis": _ANSWERS_IN_WHOLE,
        "redis-position": _ANSWERS_IN_WHOLE,
        "redis-cluster": _ANSWERS_IN_WHOLE,
        "postgres": _ANSWERS_IN_WHOLE,
        "file": _ANSWERS_IN_WHOLE,
        "file-memory": _ANSWERS_IN_WHOLE,
        "file-s3": _ANSWERS_IN_WHOLE,
        "pubsub": _ANSWERS_IN_WHOLE,
        "pubsub-unordered": _ANSWERS_IN_WHOLE,
        "pull": _ANSWERS_IN_WHOLE,
    },
    Case.ALWAYS: {
        "nats": _TRANSIENT_ERROR,
        "kafka": _TRANSIENT_ERROR,
        "kafka-transactional": _TRANSIENT_ERROR,
        "redis": _TRANSIENT_ERROR,
        "redis-position": _TRANSIENT_ERROR,
        "redis-cluster": _TRANSIENT_ERROR,
        "rabbitmq-quorum": "a quorum queue takes a few messages after it is full",
        "postgres": _TRANSIENT_ERROR,
        "file": _TRANSIENT_ERROR,
        "file-memory": _TRANSIENT_ERROR,
        "file-s3": _TRANSIENT_ERROR,
        "pubsub": _FAILS_NOTHING,
        "pubsub-unordered": _FAILS_NOTHING,
        "pull": _TRANSIENT_ERROR,
    },
    Case.THROTTLED: {
        "nats": _NEVER_ASKS,
        "kafka": "librdkafka waits by itself",
        "kafka-transactional": "librdkafka waits by itself",
        "redis": _NEVER_ASKS,
        "redis-position": _NEVER_ASKS,
        "redis-cluster": _NEVER_ASKS,
        "rabbitmq": _NEVER_ASKS,
        "rabbitmq-quorum": _NEVER_ASKS,
        "postgres": _NEVER_ASKS,
        "file": _NEVER_ASKS,
        "file-memory": _NEVER_ASKS,
        "file-s3": _ASKS_LIBRARY,
        "pubsub": _PROCESS,
        "pubsub-unordered": _PROCESS,
        "pull": _NEVER_ASKS,
    },
    Case.CUTS: _WITHOUT_CONNECTION,
    Case.LOST_ANSWER: _WITHOUT_CONNECTION,
    Case.STALL: _WITHOUT_CONNECTION,
    Case.ZOMBIE: {},
}
"""Benches by name, and why they cannot have the case."""
