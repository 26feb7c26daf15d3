"""A partition that an SQL transaction has locked: requests for it time out, others go on."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING

from tailrace.broker.limits import Limits
from tests.integration.broker.embedded import MB, EmbeddedBroker, topic
from tests.integration.broker.raw import Raw, batch, produce, response
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_postgres import Database


def test_a_batch_for_a_locked_partition_times_out(
    inside: Callable[[Limits], EmbeddedBroker], database: Database
) -> None:
    """GIVEN an idle transaction that has written to a partition with SQL WHEN a producer's timeout
    has passed THEN its batch is never written, and its memory is free."""
    served = inside(Limits())
    name = topic(database, served.port)
    values = produce(name, batch(b"late")) | {"timeout": timedelta(seconds=1)}
    with database.connect() as connection, Raw(served.port) as raw:
        with connection.transaction(force_rollback=True):
            connection.execute("SELECT kafka.produce(%s, 'k', 'sql')", (name,))
            found = raw.ask(0, 9, values).responses[0].partition_responses[0]
            assert found.error_code.name == "request_timed_out"
            assert "locked" in found.error_message
            wait_for(lambda: not served.broker.memory.used, "its memory")
        again = raw.ask(0, 9, produce(name, batch(b"retry"))).responses[0].partition_responses[0]
        assert again.base_offset == 0
    assert database.query("SELECT value FROM kafka.messages") == [(b"retry",)]


def test_batches_for_a_locked_partition_leave_memory_for_others(
    inside: Callable[[Limits], EmbeddedBroker], database: Database
) -> None:
    """GIVEN producers whose batches for a locked partition would fill the memory THEN the last of
    them are told to retry, and a producer of another partition is not delayed."""
    served = inside(Limits(memory_bytes=8 * MB))
    locked, other = topic(database, served.port), topic(database, served.port)
    with database.connect() as connection, contextlib.ExitStack() as stack:
        stack.enter_context(connection.transaction(force_rollback=True))
        connection.execute("SELECT kafka.produce(%s, 'k', 'sql')", (locked,))
        blocked = [stack.enter_context(Raw(served.port)) for _ in range(12)]
        for raw in blocked:
            raw.send(0, 9, produce(locked, batch(bytes(MB))))
        with Raw(served.port) as raw:
            done = raw.ask(0, 9, produce(other, batch(bytes(MB))))
            assert not done.responses[0].partition_responses[0].error_code
    wait_for(lambda: not served.broker.memory.used, "their memory")


def test_requests_for_a_locked_partition_leave_connections_to_others(
    inside: Callable[[Limits], EmbeddedBroker], database: Database
) -> None:
    """GIVEN more requests that delete from a locked partition than the broker has connections to
    PostgreSQL THEN they time out, and other requests are answered."""
    served = inside(Limits())
    name, other = topic(database, served.port), topic(database, served.port)
    part = {"partition_index": 0, "offset": 0}
    records = {"topics": [{"name": name, "partitions": [part]}], "timeout": timedelta(seconds=9)}
    with Raw(served.port) as raw:
        raw.ask(0, 9, produce(name, batch(b"1", b"2")))
    part["offset"] = 1
    with database.connect() as connection, contextlib.ExitStack() as stack:
        stack.enter_context(connection.transaction(force_rollback=True))
        connection.execute("SELECT kafka.produce(%s, 'k', 'sql')", (name,))
        clients = [stack.enter_context(Raw(served.port)) for _ in range(6)]
        for client in clients:
            client.send(21, 2, records)
        with Raw(served.port) as raw:
            assert len(raw.ask(3, 9, {"topics": None}).topics) == 2
            assert (
                not raw.ask(0, 9, produce(other, batch(b"3")))
                .responses[0]
                .partition_responses[0]
                .error_code
            )
            deleted = raw.ask(20, 5, {"topic_names": (name,), "timeout": timedelta(seconds=9)})
            assert deleted.responses[0].error_code.name == "request_timed_out"
        for client in clients:
            found = response(client.receive(), 21, 2).topics[0].partitions[0]
            assert (found.error_code.name, found.low_watermark) == ("request_timed_out", -1)
    with Raw(served.port) as raw:
        assert raw.ask(21, 2, records).topics[0].partitions[0].low_watermark == 1
