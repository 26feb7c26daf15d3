"""Traces of micro-batches: a real pipeline and an OTLP receiver."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pydantic import ValidationError

from tailrace.config import Config
from tailrace.log.reader import Log
from tailrace.open_batch import OpenProgress
from tailrace.pipeline.traces import MAX_LINKS, Batch, Traces, links
from tailrace.position import ORIGIN
from tailrace.tables import Tables
from tailrace.testing import HttpReceiver, HttpResponse
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fix_capture import Captured
    from tests.fix_pipeline import Delivery
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]
    Delivering = Callable[..., Delivery]

FIRST = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECOND = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
_ANNOTATE = "SELECT pg_logical_emit_message(true, 'tailrace:annotations.set', %s)"


def annotated(database: Database, text: str, statement: str) -> None:
    """A transaction with annotations."""
    with database.connect() as connection, connection.transaction():
        connection.execute(_ANNOTATE, [text])
        connection.execute(statement)


def spans(receiver: HttpReceiver) -> list[Any]:
    found = []
    for request in receiver.requests:
        assert (request.method, request.path) == ("POST", "/v1/traces")
        for resource in ExportTraceServiceRequest.FromString(request.body).resource_spans:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            assert names["service.name"] == "shop"
            found += [span for scope in resource.scope_spans for span in scope.spans]
    return found


def facts(span: Any) -> dict[str, Any]:
    return {
        each.key.removeprefix("tailrace."): each.value.string_value or each.value.int_value
        for each in span.attributes
    }


def linked(found: list[Any]) -> set[str]:
    return {
        f"00-{link.trace_id.hex()}-{link.span_id.hex()}" for span in found for link in span.links
    }


@pytest.mark.parametrize("expression", [{}, {"where": "id > 0"}], ids=["blocks", "sql"])
def test_a_span_per_batch_with_links(
    database: Database, capture: Capturing, deliver: Delivering, expression: dict[str, Any]
) -> None:
    """GIVEN transactions with traceparent, one of another table WHEN a pipeline delivers them THEN
    the collector gets spans whose counts and positions are those of the pipeline, with links to the
    transactions of its tables."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    database.execute("CREATE TABLE others (id int PRIMARY KEY)")
    captured = capture(database)
    annotated(database, f'{{"traceparent": "{FIRST}"}}', "INSERT INTO items VALUES (1), (2)")
    annotated(database, '{"by": "ann"}', "INSERT INTO items VALUES (3)")
    annotated(database, f'{{"traceparent": "{SECOND}"}}', "INSERT INTO others VALUES (1)")
    captured.catch_up()
    delivery = deliver(captured, tables=["items"], **expression)
    with HttpReceiver() as receiver:
        delivery.telemetry = {
            "endpoint": receiver.url, "service": "shop", "headers": {"x-key": "secret"},
        }  # fmt: skip
        figures = delivery.run()
        found = spans(receiver)
        assert {request.headers["x-key"] for request in receiver.requests} == {"secret"}
    assert figures.spans_lost == 0
    assert len(found) == figures.batches
    each = [facts(span) for span in found]
    assert sum(fact["events"] for fact in each) == figures.events == 3
    assert sum(fact["bytes"] for fact in each) == figures.bytes
    assert {fact["pipeline"] for fact in each} == {"test"}
    assert each[-1]["position.upto"] == figures.position
    assert all(fact["batch.attempts"] == 1 for fact in each)
    assert all(span.end_time_unix_nano > span.start_time_unix_nano for span in found)
    assert linked(found) == {FIRST[:-3]}


def test_a_collector_that_is_away_costs_spans_only(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    """GIVEN a collector that refuses THEN everything is delivered, and the spans are counted."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    captured = capture(database)
    database.execute("INSERT INTO items SELECT generate_series(1, 5)")
    captured.catch_up()
    delivery = deliver(captured, tables=["items"])
    with HttpReceiver(lambda _: HttpResponse(status=400)) as receiver:
        delivery.telemetry = {"endpoint": receiver.url, "timeout_s": 1}
        figures = delivery.run()
    assert figures.events == 5
    assert len(delivery.received()) == 5
    assert figures.spans_lost == figures.batches > 0


class Stuck:
    """An exporter that never answers until it is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.asked = threading.Event()

    def send(self, spans: list[tuple[Batch, list[str]]]) -> bool:
        self.asked.set()
        self.closed.wait()
        return False

    def close(self) -> None:
        self.closed.set()


def batch(number: int) -> Batch:
    return Batch(
        pipeline="test", number=number, after=ORIGIN, upto=ORIGIN, started_ns=1, ended_ns=2,
        attempts=1, delivered=OpenProgress(),
    )  # fmt: skip


def test_a_collector_that_hangs_does_not_hold_delivery(tmp_path: Path) -> None:
    """GIVEN an exporter that hangs WHEN more batches end than fit THEN adding them goes on, every
    span is counted as lost, and the thread ends."""
    exporter = Stuck()
    made = Traces(exporter, tmp_path, Tables())
    for number in range(3000):
        made.add(batch(number))
    assert exporter.asked.wait(30)
    assert made.lost >= 1000
    made.close(time.monotonic())
    wait_for(lambda: made.lost == 3000, lambda: made.lost)
    wait_for(lambda: not made._thread.is_alive(), "the thread to end")


def test_links_are_bounded_and_distinct(database: Database, capture: Capturing) -> None:
    """Also where one transaction is many entries, or a value is not one of W3C's."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
    captured = capture(database)
    annotated(
        database,
        f'{{"traceparent": "{FIRST}"}}',
        "INSERT INTO items SELECT g, repeat('x', 1000) FROM generate_series(1, 20000) g",
    )
    for text in ("ff" + FIRST[2:], FIRST[:-5], f"00-{'0' * 32}-b7ad6b7169203331-01", FIRST):
        annotated(
            database, f'{{"traceparent": "{text}"}}', "UPDATE items SET note = '' WHERE id = 1"
        )
    captured.catch_up()
    log = Log.open(captured.folder)
    end = log.end().position

    def found(after: Any = ORIGIN, table: str = "items") -> list[str]:
        return links(log, after, end, lambda relation: relation.name == table)

    assert found() == [FIRST]
    assert found(table="others") == []
    for number in range(MAX_LINKS + 5):
        value = f"00-{number + 1:032x}-{number + 1:016x}-01"
        update = f"UPDATE items SET note = '{number}' WHERE id = 1"
        annotated(database, f'{{"a": 1, "traceparent" : "{value}"}}', update)
    captured.catch_up()
    after, end = end, log.end().position
    assert len(found(after)) == MAX_LINKS


def test_nothing_is_imported_without_telemetry() -> None:
    program = (
        "import sys, tailrace.pipeline.running, tailrace.pipeline.application\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[]"


@pytest.mark.parametrize("endpoint", ["collector:4318", "ftp://x", "http://u:p@x", "http://x?y=1"])
def test_an_endpoint_is_checked(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="must be an address such as"):
        Config.model_validate({"telemetry": {"endpoint": endpoint}})
