"""Reading back from a cluster, where a consumer may run on a replica that lags."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tailrace.errors import SinkUnreachableError
from tailrace.jetstream.bulk import read_back as module
from tailrace.jetstream.protocol import Message
from tailrace.position import ORIGIN
from tests.unit.sinks.rows import message_id, position, rows

ALL = (1, 10)


class Replica:
    """A connection: the leader has `leader` messages, the consumer sees up to each of `seen`."""

    def __init__(self, leader: set[int], *seen: int) -> None:
        self.leader = leader
        self.seen = list(seen)
        self.delivered = 0

    def request(self, subject: str, body: Any = None) -> dict[str, Any]:
        if ".MSG.GET." not in subject:
            return {}
        sequence = min((each for each in self.leader if each >= body["seq"]), default=None)
        if sequence is None:
            return {"error": {"code": 404, "err_code": 10037}}
        header = base64.b64encode(self._header(sequence)).decode()
        return {"message": {"seq": sequence, "subject": "cdc.t", "hdrs": header}}

    def pull(self, _subject: str, _most: int) -> list[Message]:
        upto = self.seen.pop(0) if self.seen else self.delivered
        found = [each for each in sorted(self.leader) if self.delivered < each <= upto]
        self.delivered = max(self.delivered, upto)
        return [
            Message(
                subject=b"cdc.t", reply=b"$JS.ACK.CDC.c.1.%d.%d.0.0" % (each, each),
                header=self._header(each),
            )
            for each in found
        ]  # fmt: skip

    def _header(self, sequence: int) -> bytes:
        return b"NATS/1.0\r\nNats-Msg-Id: %s\r\n\r\n" % message_id(sequence)


class Shared:
    """A connection to a stream: at each sequence a message of a pipeline, by number.

    A message of the pipeline "" names none: it was published before the stream was shared.
    """

    def __init__(self, *messages: tuple[str, int]) -> None:
        self._messages = messages
        self._next = 1
        self.read = 0
        """How many messages were read."""

    def request(self, subject: str, body: Any = None) -> dict[str, Any]:
        if ".CONSUMER.CREATE." in subject:
            self._next = body["config"]["opt_start_seq"]
        if ".MSG.GET." not in subject:
            return {}
        if body["seq"] > len(self._messages):
            return {"error": {"code": 404, "err_code": 10037}}
        header = base64.b64encode(self._header(body["seq"])).decode()
        return {"message": {"seq": body["seq"], "subject": "cdc.t", "hdrs": header}}

    def pull(self, _subject: str, most: int) -> list[Message]:
        found = range(self._next, min(self._next + most, len(self._messages) + 1))
        self._next, self.read = found.stop, self.read + len(found)
        return [
            Message(
                subject=b"cdc.t", reply=b"$JS.ACK.CDC.c.1.%d.%d.0.0" % (each, each),
                header=self._header(each),
            )
            for each in found
        ]  # fmt: skip

    def _header(self, sequence: int) -> bytes:
        owner, number = self._messages[sequence - 1]
        fields = module.OwnMessages("CDC", owner=owner, shared=bool(owner)).fields
        return b"NATS/1.0\r\nNats-Msg-Id: %s%s\r\n\r\n" % (message_id(number), fields)


def stored(line: Shared, after: int, *, shared: bool = True) -> list[int]:
    """The numbers up to 20 that are found after a number, for the pipeline `one`."""
    size = len(line._messages)
    own = module.OwnMessages("CDC", owner="one", shared=shared)
    found = module.read_back(line, own, (1, size), after=position(after))  # type: ignore[arg-type]
    batch = rows(range(20), destination=b"cdc.t")
    missing = found.missing(batch)["id"].to_pylist()
    return [number for number in range(20) if message_id(number) not in missing]


def test_positions_of_another_pipeline_do_not_end_the_search() -> None:
    """GIVEN another pipeline that is far behind this one WHEN its messages follow those that this
    one has stored since its checkpoint THEN the stored ones are found."""
    line = Shared(("one", 4), ("one", 5), ("one", 6), *(("two", 1) for _ in range(1000)))
    assert stored(line, 4) == [5, 6]
    assert stored(Shared(("one", 5), ("two", 1), ("two", 2)), 4, shared=False) == [5]


def test_ids_of_another_pipeline_are_not_taken_for_own_ones() -> None:
    assert stored(Shared(("one", 4), ("two", 5), ("one", 6), ("two", 7)), 4) == [6]


def test_messages_without_a_name_do_not_end_the_search() -> None:
    """They may be another pipeline's, from before the stream was shared; or this one's."""
    assert stored(Shared(("", 6), ("one", 5), ("", 1)), 4) == [5, 6]
    assert stored(Shared(("", 6), ("one", 5), ("", 1)), 4, shared=False) == []


def test_the_search_ends_at_a_delivered_message() -> None:
    line = Shared(*(("one", 1) for _ in range(100_000)), ("one", 5), ("two", 1))
    assert stored(line, 4) == [5]
    assert line.read < 1000


def test_ids_are_held_in_columns() -> None:
    """GIVEN a lost checkpoint and a long stream THEN its ids take the memory of their bytes, and
    only those of one pull are Python objects."""
    count = 4 * module._PULL
    line: Any = Shared(*(("one", number) for number in range(1, count + 1)))
    own = module.OwnMessages("CDC", owner="one")
    found = module._forward(line, own, (1, count), ORIGIN)
    assert {type(part) for part in found.keys} == {pa.LargeBinaryArray}
    assert {type(part) for part in found.lsns} == {np.ndarray}
    assert [len(part) for part in found.keys] == [module._PULL] * 4
    size = sum(part.nbytes for part in (*found.keys, *found.lsns))
    key = len(b"cdc.t ") + len(message_id(count))
    assert size <= (key + 16) * count + 100
    assert len(module.ReadBack.joined([found])) == count


def read(line: Replica) -> int:
    return len(module.read_back(line, module.OwnMessages("CDC"), ALL, after=ORIGIN))  # type: ignore[arg-type]


def test_messages_of_the_leader_are_waited_for() -> None:
    assert read(Replica(set(range(1, 11)), 3, 3, 8, 8, 8, 10)) == 10


def test_deleted_messages_are_not_waited_for() -> None:
    assert read(Replica(set(range(1, 9)), 8)) == 8
    assert read(Replica({*range(1, 9), 11, 12}, 8)) == 8


def test_a_replica_that_keeps_lagging_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_LAG_S", 0.1)
    with pytest.raises(SinkUnreachableError, match="no message 9 yet"):
        read(Replica(set(range(1, 11)), 8))


def test_ids_after_a_sequence_are_those_of_one_subject() -> None:
    asked: list[Any] = []

    class Watched(Replica):
        def request(self, subject: str, body: Any = None) -> dict[str, Any]:
            asked.append(body)
            return super().request(subject, body)

    line = Watched(set(range(1, 11)), 4, 4, 10)
    line.delivered = 3
    found = list(module.ids(line, "CDC", "cdc.t", (4, 10)))  # type: ignore[arg-type]
    assert found == [message_id(number) for number in range(4, 11)]
    assert asked[0]["config"]["opt_start_seq"] == 4
    assert asked[0]["config"]["filter_subject"] == "cdc.t"
    # Whether the replica has all messages is asked for this subject only.
    assert {body["next_by_subj"] for body in asked if body and "seq" in body} == {"cdc.t"}


def test_no_ids_after_the_last_message() -> None:
    assert list(module.ids(Replica(set()), "CDC", "cdc.t", (11, 10))) == []  # type: ignore[arg-type]
