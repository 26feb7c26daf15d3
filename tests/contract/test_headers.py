"""Headers of messages arrive in every sink whose messages have headers; others refuse them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pydantic import ValidationError

from tailrace.config import Pipeline
from tailrace.message import HEADERS
from tailrace.position import ORIGIN
from tailrace.sinks.registry import SINKS
from tests.contract.benches.registry import BENCHES, names
from tests.unit.sinks.rows import rows, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.contract.benches.bench import Bench

WITH_HEADERS = [
    name for name in BENCHES if SINKS.find(name.partition("-")[0]).own_headers is not None
]


@pytest.fixture(params=names(WITH_HEADERS))
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with BENCHES[request.param](request) as made:
        yield made


def test_headers_arrive_as_they_are(bench: Bench) -> None:
    given: list[dict[str, str]] = [
        {},
        {"Tenant": "a"},
        {},
        {"Tenant": "long" * 200, "X-Trace.Id": 'x=1; y="2" z'},
        {"count": "7"},
    ]
    column = pa.array([list(each.items()) or None for each in given], HEADERS)
    batch = rows(range(6), destination=bench.place())
    batch = batch.set_column(batch.schema.get_field_index("headers"), "headers", _after_one(column))
    sink = bench.make()
    sink.open(ORIGIN)
    # A slice: columns of maps have offsets of their own.
    write(sink, batch.slice(1))
    sink.flush()
    sink.close()
    ours = {name.lower() for each in given for name in each}
    found = [
        {name: value for name, value in each.items() if name in ours} for each in bench.headers()
    ]
    assert found == [{name.lower(): value for name, value in each.items()} for each in given]


def _after_one(column: pa.MapArray) -> pa.MapArray:
    return pa.concat_arrays([pa.array([[("count", "0")]], HEADERS), column])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"type": "file", "url": "/tmp/x"}, "messages of the sink file have no headers"),
        ({"type": "redis", "url": "redis://127.0.0.1"}, "messages of the sink redis have no"),
        ({"type": "nats"}, "nats does not take the header Nats-Msg-Id"),
        ({"type": "http", "url": "http://127.0.0.1"}, "http does not take the header Webhook-Id"),
        ({"type": "rabbitmq", "url": "amqp://127.0.0.1"}, "rabbitmq does not take the header key"),
        (
            {"type": "http", "url": "http://127.0.0.1", "body": "array"},
            "use `body: message`",
        ),
    ],
)
def test_a_header_that_the_sink_does_not_take_is_refused(
    settings: dict[str, object], reason: str
) -> None:
    names = ("Nats-Msg-Id", "Webhook-Id", "key")
    with pytest.raises(ValidationError, match=reason):
        Pipeline.model_validate({"headers": dict.fromkeys(names, "op"), "sink": settings})


def test_services_of_aws_take_ten_attributes() -> None:
    given = {f"h{number}": "op" for number in range(8)}
    queue = {"type": "sqs", "region": "eu-central-1", "queue": "x"}
    with pytest.raises(ValidationError, match="sqs takes at most 7 `headers`"):
        Pipeline.model_validate({"headers": given, "sink": queue})


@pytest.mark.parametrize("name", ["", "a b", "a:b", "\u00e4", "x" * 128])
def test_a_name_that_no_protocol_takes_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="is not a valid name of a header"):
        Pipeline.model_validate({"headers": {name: "op"}, "sink": {"type": "nats"}})
