"""Errors and events of librdkafka, translated into Tailrace errors."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from tailrace.errors import (
    PoisonedError,
    SinkFencedError,
    SinkFullError,
    SinkRefusedError,
    SinkUnreachableError,
    TailraceError,
)
from tailrace.sinks.kafka.failures import Events, cause, translate_error


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._TRANSPORT, SinkUnreachableError),
        (KafkaError._TIMED_OUT, SinkUnreachableError),
        (KafkaError._ALL_BROKERS_DOWN, SinkUnreachableError),
        (KafkaError.NOT_LEADER_FOR_PARTITION, SinkUnreachableError),
        (KafkaError.NOT_ENOUGH_REPLICAS, SinkUnreachableError),
        (KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, SinkUnreachableError),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, SinkUnreachableError),
        (KafkaError.THROTTLING_QUOTA_EXCEEDED, SinkFullError),
        (KafkaError._AUTHENTICATION, SinkRefusedError),
        (KafkaError._SSL, SinkRefusedError),
        (KafkaError.SASL_AUTHENTICATION_FAILED, SinkRefusedError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, SinkRefusedError),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, SinkRefusedError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, SinkRefusedError),
        (KafkaError._UNKNOWN_PARTITION, SinkRefusedError),
        (KafkaError.INVALID_REPLICATION_FACTOR, SinkRefusedError),
        (KafkaError.MSG_SIZE_TOO_LARGE, PoisonedError),
        (KafkaError.INVALID_RECORD, PoisonedError),
        (KafkaError._FENCED, SinkFencedError),
        (KafkaError.INVALID_PRODUCER_EPOCH, SinkFencedError),
        (KafkaError.PRODUCER_FENCED, SinkFencedError),
    ],
)
def test_every_error_code_maps_to_its_error_class(code: int, kind: type[TailraceError]) -> None:
    error = translate_error(KafkaError(code), "topic orders")
    assert type(error) is kind
    assert str(error).startswith("topic orders: ")
    assert error.hint


def test_a_cluster_that_starts_refuses_topics_for_a_moment() -> None:
    fenced = "Unable to replicate the partition 1 time(s): All brokers are currently fenced."
    error = translate_error(KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, fenced), "topic t")
    assert type(error) is SinkUnreachableError


def test_events_explain_a_timeout() -> None:
    events = Events()
    late = KafkaError(KafkaError._TIMED_OUT)
    assert not events.final
    assert "no answer" in str(events.translate_error(None, "Kafka"))
    events(KafkaError(KafkaError._TRANSPORT, "connection refused"))
    assert not events.final
    assert "connection refused" in str(events.translate_error(late, "Kafka"))
    events(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert events.final
    assert isinstance(events.translate_error(late, "Kafka"), SinkUnreachableError)
    events(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
    assert isinstance(events.translate_error(late, "Kafka"), SinkRefusedError)
    events.clear()
    assert not events.final


def test_a_brokers_tls_alert_is_a_refusal() -> None:
    events = Events()
    events(KafkaError(KafkaError._TRANSPORT, "ssl/tls alert bad certificate"))
    assert events.final
    assert isinstance(events.translate_error(None, "Kafka"), SinkRefusedError)


def test_events_do_not_replace_the_error_of_a_call() -> None:
    events = Events()
    events(KafkaError(KafkaError._TRANSPORT, "one broker of three is gone"))
    fenced = events.translate_error(KafkaError(KafkaError._FENCED), "Kafka")
    assert isinstance(fenced, SinkFencedError)


def test_the_cause_is_found_in_the_chain_of_a_system_error() -> None:
    fenced = KafkaError(KafkaError._FENCED)
    broken = SystemError("returned a result with an exception set")
    broken.__cause__ = KafkaException(fenced)
    found = cause(broken)
    assert found is not None
    assert found.code() == KafkaError._FENCED
    assert cause(ValueError()) is None
