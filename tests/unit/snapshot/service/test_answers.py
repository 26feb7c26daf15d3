"""Requests of Creek's clients are parsed or refused, and a refusal fits in a message header."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.config import Pipeline
from tailrace.errors import (
    ConfigError,
    MalformedError,
    PostgresUnreachableError,
    SinkFullError,
    TailraceError,
)
from tailrace.postgres.names import TableName
from tailrace.snapshot.service.answers import CreekAnswers, CreekRequest, PlainAnswers
from tailrace.snapshot.service.catalog import Listing
from tailrace.snapshot.service.record import Record

if TYPE_CHECKING:
    from tailrace.snapshot.job import FormatName

NAMES = st.text(st.characters(codec="utf-8"), min_size=1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | NAMES,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
)


def creek() -> CreekAnswers:
    sink = {"type": "nats", "url": "nats://127.0.0.1:1"}
    snapshots = {"request": "CREEK._snapshot", "stream": {"name": "CREEK_snap"}}
    pipeline = Pipeline.model_validate({"shape": "creek", "sink": sink, "snapshots": snapshots})
    return CreekAnswers(pipeline, None, None)  # type: ignore[arg-type]


@given(NAMES, NAMES, NAMES, st.dictionaries(st.sampled_from(["more", "format"]), JSON))
def test_valid_requests(database: str, namespace: str, table: str, more: dict[str, Any]) -> None:
    request = {"database": database, "namespace": namespace, "table": table, **more}
    parsed = CreekRequest.parse(msgspec.json.encode(request))
    assert parsed == CreekRequest(database, TableName(namespace, table))


@given(st.binary() | st.builds(msgspec.json.encode, JSON))
def test_anything_else_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedError):
        CreekRequest.parse(body)


@given(st.text(st.characters(codec="utf-8"), max_size=3000))
def test_a_refusal_has_one_line(text: str) -> None:
    reply = creek().refusal(ConfigError(text, hint=text))
    assert not {"\r", "\n", "\0"} & set(reply.headers["Nats-Service-Error"])
    assert len(reply.headers["Nats-Service-Error"]) <= 1000
    assert msgspec.json.decode(reply.data) == {
        "error": text[:1000],
        "code": "BAD_CONFIG",
        "hint": text,
    }


@pytest.mark.parametrize(
    ("error", "status"),
    [(MalformedError("x"), "400"), (ConfigError("x"), "404"), (SinkFullError("x"), "503"),
     (TailraceError("x"), "503")],
)  # fmt: skip
def test_the_status_of_a_refusal(error: TailraceError, status: str) -> None:
    headers = creek().refusal(error).headers
    assert headers["Nats-Service-Error-Code"] == status


class Tables:
    """The published tables of one pipeline; without names its PostgreSQL is down."""

    last_listing = None

    def __init__(self, *names: str) -> None:
        self._tables = frozenset(TableName("public", name) for name in names)

    def listing(self) -> Listing:
        if not self._tables:
            raise PostgresUnreachableError("connection refused")
        return Listing("shop", self._tables)


def plain(*tables: str) -> PlainAnswers:
    sink = {"type": "nats", "url": "nats://127.0.0.1:1"}
    pipeline = Pipeline.model_validate({"encoding": "json", "sink": sink, "snapshots": {}})

    def submit(table: TableName, form: FormatName, _listing: Listing) -> Record:
        return Record(id="snap-1", table=table, form=form, requested_at=0.0)

    return PlainAnswers(pipeline, Tables(*tables), submit)  # type: ignore[arg-type]


@pytest.mark.parametrize("tables", [("other",), ()])
def test_the_pipeline_that_has_the_table_replies_first(
    tables: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN two bridges that get every request WHEN one lacks the table, or cannot know whether it
    has it, THEN its refusal comes after the reply of the other."""
    replied: list[bytes] = []
    delayed = asyncio.Event()

    async def sleep(_seconds: float) -> None:
        await delayed.wait()

    monkeypatch.setattr(asyncio, "sleep", sleep)

    async def ask(answers: PlainAnswers) -> None:
        replied.append((await answers.answer("snapshot.request.items", b"")).data)
        delayed.set()

    async def both() -> None:
        await asyncio.gather(ask(plain(*tables)), ask(plain("items")))

    asyncio.run(both())
    assert [sorted(msgspec.json.decode(reply)) for reply in replied] == [
        ["format", "schema", "snapshot_id", "state", "table"],
        ["code", "error", "hint"],
    ]
