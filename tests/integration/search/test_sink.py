"""Documents in real servers hold the newest state of their rows, whatever is repeated."""

from __future__ import annotations

import json
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import (
    DivergedError,
    SinkFullError,
    SinkRefusedError,
    SinkUnreachableError,
)
from tailrace.position import PAGE_BITS, READS, RELEASED, Lsn, Position
from tailrace.sinks.contract import Lane
from tailrace.sinks.outcome import Verdict
from tailrace.sinks.registry import SINKS
from tailrace.sinks.retry import Retry
from tailrace.testing import HttpRequest, HttpResponse
from tailrace.testing.process import free_port
from tests.integration.search.bench import (
    Bench,
    Change,
    Gateway,
    Server,
    batch,
    position,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["opensearch", pytest.param("elasticsearch", marks=pytest.mark.long)])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture
def bench(server: Server) -> Bench:
    return Bench(server)


def test_documents_hold_the_newest_state(bench: Bench) -> None:
    receipt = bench.deliver(
        Change(number=0, key="a", doc={"n": 1}),
        Change(number=1, key="b", doc={"n": 1}),
        Change(number=2, key="a", doc={"n": 2}),
        Change(number=3, key="c", doc={"n": 1}),
        Change(number=4, key="b"),
        Change(number=5, key="d", former="c", doc={"n": 3}),
        Change(number=6, key='["1","x"]', doc='{"n":\n4}'),
    )
    assert (receipt.messages, receipt.failures) == (7, ())
    assert bench.documents == {"a": {"n": 2}, "d": {"n": 3}, '["1","x"]': {"n": 4}}


def test_repeated_and_delayed_messages_change_nothing(bench: Bench) -> None:
    changes = [
        Change(number=0, key="a", doc={"n": 1}),
        Change(number=1, key="a", doc={"n": 2}),
        Change(number=2, key="b", doc={"n": 1}),
        Change(number=3, key="b"),
    ]
    for some in (changes, changes[:1], changes[2:3], changes[1:], changes):
        assert bench.deliver(*some).messages == len(some)
        assert bench.documents == {"a": {"n": 2}}


def test_backfilled_rows_are_between_the_changes_around_them(bench: Bench) -> None:
    """A row of a backfill is older than a change after it, even in the same 8 bytes of WAL."""
    commit = position(9)
    read = Position(Lsn(commit.lsn - 1), READS | 1 << PAGE_BITS)
    bench.deliver(Change(number=0, key="a", doc={"n": 9}, place=commit))
    bench.deliver(Change(number=0, key="a", doc={"n": 0}, place=read))
    assert bench.documents == {"a": {"n": 9}}
    later = Position(Lsn(commit.lsn + 3), READS | 1 << PAGE_BITS)
    bench.deliver(Change(number=0, key="a", doc={"n": 10}, place=later))
    assert bench.documents == {"a": {"n": 10}}


def test_a_parked_message_that_is_retried_does_not_replace_a_newer_state(bench: Bench) -> None:
    old = position(0).event_id
    bench.deliver(Change(number=1, key="a", doc={"n": 2}))
    again = Position(position(5).lsn, READS | 1 << PAGE_BITS | RELEASED)
    receipt = bench.deliver(Change(number=0, key="a", doc={"n": 1}, place=again, name=old))
    assert receipt.messages == 1
    assert bench.documents == {"a": {"n": 2}}


def test_changes_late_in_a_large_transaction_stay_in_order(bench: Bench) -> None:
    """Their versions are equal; the second one must not be in the request of the first."""
    lsn = position(0).lsn
    changes = [
        Change(number=0, key=f"k{n % 3}", doc={"n": n}, place=Position(lsn, 600 + n))
        for n in range(9)
    ]
    assert bench.deliver(*changes).messages == 9
    assert bench.documents == {"k0": {"n": 6}, "k1": {"n": 7}, "k2": {"n": 8}}


def test_refused_documents_are_failures_with_the_reason(bench: Bench) -> None:
    receipt = bench.deliver(
        Change(number=0, key="a", doc={"n": 1}),
        Change(number=1, key="b", doc={"n": "not a number"}),
        Change(number=2, key="c", doc={"n": 2}),
    )
    assert receipt.messages == 2
    [(message, outcome)] = receipt.failures
    assert message["key"].to_pylist() == [b"b"]
    assert (outcome.verdict, outcome.code) == (Verdict.REFUSED, "HTTP_400")
    assert "failed to parse field [n]" in outcome.response
    assert bench.documents == {"a": {"n": 1}, "c": {"n": 2}}


def test_a_refused_state_that_is_obsolete_is_no_failure(bench: Bench) -> None:
    bench.deliver(Change(number=0, key="z", doc={"n": 1}))
    receipt = bench.deliver(
        Change(number=1, key="a", doc={"n": "not a number"}),
        Change(number=2, key="a", doc={"n": 2}),
        Change(number=3, key="b", doc={"n": "not a number"}),
        Change(number=4, key="b"),
        Change(number=5, key="c", doc={"n": "not a number"}),
    )
    assert receipt.messages == 4
    assert [failure.message["key"][0].as_py() for failure in receipt.failures] == [b"c"]
    assert bench.documents == {"z": {"n": 1}, "a": {"n": 2}}


def test_after_a_refused_change_of_a_key_both_documents_wait(bench: Bench) -> None:
    bench.deliver(Change(number=0, key="a", doc={"n": 1}))
    receipt = bench.deliver(
        Change(number=1, key="b", former="a", doc={"n": "not a number"}),
        Change(number=2, key="b", doc={"n": 2}),
    )
    codes = [failure.outcome.code for failure in receipt.failures]
    assert (receipt.messages, codes) == (0, ["HTTP_400", "UNSENT"])


@pytest.mark.parametrize("moved", [False, True])
def test_missing_values_come_from_the_document(bench: Bench, moved: bool) -> None:
    first = Change(number=0, key="a", doc={"n": 1, "body": "long", "big": 12345678901234567890123})
    own, former = ("b", "a") if moved else ("a", None)
    partial = '{"":["body","big"],"n":2.50}'
    second = Change(number=1, key=own, former=former, doc=partial)
    third = Change(number=2, key=own, doc='{"":["body"],"n":3,"big":1}')
    expected = {own: {"big": 1, "body": "long", "n": 3}}
    mapping = {"mappings": {"properties": {"big": {"type": "keyword"}}}}
    bench.server.call("PUT", f"/{bench.index}", mapping)
    for some in ([first, second], [first, second], [second, third], [first, second, third]):
        assert bench.deliver(*some).failures == ()
        last = some[-1]
        if last is second and bench.documents[own]["n"] != 3:
            assert bench.documents[own]["big"] == 12345678901234567890123
    assert bench.documents == expected


def test_missing_values_that_no_document_has_are_a_failure(bench: Bench) -> None:
    receipt = bench.deliver(
        Change(number=0, key="a", doc={"n": 1}),
        Change(number=1, key="a", doc='{"":["body"],"n":2}'),
        Change(number=2, key="b", doc='{"":["body"],"n":2}'),
        Change(number=3, key="c", doc={"n": 3}),
    )
    assert receipt.messages == 2
    assert [failure.outcome.code for failure in receipt.failures] == ["INCOMPLETE"] * 2
    assert "backfill" in receipt.failures[0].outcome.hint
    assert bench.documents == {"a": {"n": 1}, "c": {"n": 3}}


def test_truncate(bench: Bench) -> None:
    truncate = batch(bench.index, Change(number=1, key=None), destination=f"TRUNCATE {bench.index}")
    with bench.opened() as sink:
        assert "TRUNCATE" in sink.inspect(truncate)[0].reason
    bench.deliver(Change(number=0, key="a", doc={"n": 1}))
    with bench.opened(truncate="ignore") as sink:
        assert sink.inspect(truncate) == {}
        sink.write(truncate)
        assert sink.flush().messages == 1
    assert bench.documents == {"a": {"n": 1}}


def test_messages_that_cannot_be_documents_are_refused_before_they_are_sent(bench: Bench) -> None:
    cases = {
        "no key": Change(number=0, key=None, doc={}),
        "512 bytes": Change(number=0, key="k" * 513, doc={}),
        "not a JSON object": Change(number=0, key="a", doc="[]"),
        "max_message_bytes is 100": Change(number=0, key="a", doc={"n": "x" * 100}),
    }
    with bench.opened(max_message_bytes=100) as sink:
        for reason, change in cases.items():
            [(row, outcome)] = sink.inspect(batch(bench.index, change)).items()
            assert (row, outcome.verdict, outcome.code) == (0, Verdict.REFUSED, "POISONED")
            assert reason in outcome.reason
        [outcome] = sink.inspect(batch("Orders", Change(number=0, key="a", doc={}))).values()
        assert "'Orders' is not the name of an index" in outcome.reason


def test_append_adds_each_message_once(bench: Bench) -> None:
    changes = [Change(number=n, key="a", doc={"n": n} if n else {}) for n in range(3)]
    messages = batch(bench.index, *changes, destination=bench.index)
    for _ in range(2):
        with bench.opened(mode="append") as sink:
            assert sink.inspect(messages) == {}
            sink.write(messages)
            assert sink.flush().messages == 3
    time = 1_765_540_834_338
    assert bench.documents == {
        change.at.event_id: {"@timestamp": time} | change.doc for change in changes
    }


def test_a_data_stream(opensearch_server: Server) -> None:
    bench = Bench(opensearch_server)
    template = {"index_patterns": [f"{bench.index}*"], "data_stream": {}}
    bench.server.call("PUT", f"/_index_template/{bench.index}", template)
    bench.server.call("PUT", f"/_data_stream/{bench.index}")
    messages = batch(bench.index, Change(number=0, key="a", doc={"n": 1}), destination=bench.index)
    with bench.opened(mode="append") as sink:
        sink.write(messages)
        assert sink.flush().messages == 1
    assert [doc["n"] for doc in bench.documents.values()] == [1]
    with pytest.raises(SinkRefusedError, match="data stream"):
        bench.deliver(Change(number=1, key="a", doc={"n": 2}))


def test_an_index_that_is_missing_or_full(bench: Bench) -> None:
    """An error about the whole index stops the pipeline: nothing is parked."""
    blocked = {"settings": {"index.blocks.read_only_allow_delete": True}}
    bench.server.call("PUT", f"/{bench.index}", blocked)
    with pytest.raises(SinkFullError):
        bench.deliver(Change(number=0, key="a", doc={"n": 1}))
    settings = {"persistent": {"action.auto_create_index": "tailrace-*"}}
    bench.server.call("PUT", "/_cluster/settings", settings)
    try:
        with pytest.raises(SinkRefusedError, match="index_not_found"):
            Bench(bench.server).deliver(Change(number=0, key="a", doc={"n": 1}))
    finally:
        default = {"persistent": {"action.auto_create_index": None}}
        bench.server.call("PUT", "/_cluster/settings", default)


def test_another_log_needs_a_reset_and_then_overwrites(bench: Bench) -> None:
    """GIVEN documents of a log WHEN a log with lower positions follows, after a restore THEN it is
    refused; after a reset its changes count as newer."""
    first = Lane(pipeline=bench.index, history="one")
    bench.deliver(Change(number=9, key="a", doc={"n": 9}), lane=first)
    with pytest.raises(DivergedError, match="of the log one"):
        bench.deliver(lane=Lane(pipeline=bench.index, history="two"))
    for number, history in ((1, "two+r"), (2, "two"), (1, "two+r")):
        lane = Lane(pipeline=bench.index, history=history)
        bench.deliver(Change(number=number, key="a", doc={"n": number}), lane=lane)
    assert bench.documents == {"a": {"n": 2}}
    stray = Bench(bench.server, index=bench.index)
    with pytest.raises(DivergedError, match="later log"):
        stray.deliver(
            Change(number=9, key="a", doc={"n": 9}),
            lane=Lane(pipeline="another", history="one"),
        )


def test_all_lanes_begin_the_same_generation(bench: Bench) -> None:
    bench.deliver(lane=Lane(pipeline=bench.index, history="one"))
    lanes = [Lane(pipeline=bench.index, history="two+r", number=n, lanes=8) for n in range(8)]
    failed: list[Exception] = []

    def start(lane: Lane) -> None:
        try:
            bench.deliver(lane=lane)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=start, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    [found] = [
        document
        for name, document in bench.server.documents("tailrace-histories").items()
        if name == bench.index
    ]
    assert found == {"log": "two", "generation": 1}


def test_what_was_accepted_is_not_sent_again(bench: Bench, tmp_path: Path) -> None:
    lane = Lane(pipeline=bench.index, history="a", folder=tmp_path / "accepted")
    changes = [Change(number=n, key=f"k{n}", doc={"n": n}) for n in range(3)]
    assert bench.deliver(*changes[:2], lane=lane).messages == 2
    receipt = bench.deliver(*changes, lane=lane)
    assert (receipt.messages, receipt.duplicates) == (1, 2)


class Failing(Gateway):
    """Fails some items of each bulk request once: they are not stored."""

    def __init__(self, server: Server, seed: int, status: int) -> None:
        super().__init__(server)
        self._rng = random.Random(seed)
        self._status = status
        self.failed = 0

    def instead(self, request: HttpRequest) -> HttpResponse | None:
        if not request.path.startswith("/_bulk") or self._rng.random() < 0.7:
            return None
        self.failed += 1
        if self._status == 0:
            return HttpResponse(status=0)
        headers = {"retry-after": "0", "content-type": "application/json"}
        return HttpResponse(status=self._status, headers=headers, body=b"{}")

    def changed(self, request: HttpRequest, body: bytes) -> bytes:
        """Deny some items that were stored."""
        found = json.loads(body)
        if not request.path.startswith("/_bulk") or self._rng.random() < 0.7:
            return body
        found["errors"] = True
        for item in found["items"]:
            if self._rng.random() < 0.3:
                (kind,) = item
                item[kind] = {"status": 503, "error": {"type": "x", "reason": "y"}}
        return json.dumps(found).encode()


@pytest.mark.parametrize("status", [0, 429, 503])
@pytest.mark.long
def test_failures_leave_the_newest_state(bench: Bench, seed: int, status: int) -> None:
    """GIVEN a cluster that fails requests and items, before and after it has stored them WHEN rows
    are inserted, updated, moved and deleted THEN the documents are the rows."""
    rng = random.Random(seed)
    rows: dict[str, Any] = {}
    changes = []
    for number in range(400):
        key = f"k{rng.randrange(20)}"
        kind = rng.random()
        if kind < 0.2:
            rows.pop(key, None)
            changes.append(Change(number=number, key=key))
        elif kind < 0.3 and rows:
            former = rng.choice(list(rows))
            del rows[former]
            rows[key] = {"n": number}
            former_or_none = None if former == key else former
            changes.append(Change(number=number, key=key, former=former_or_none, doc={"n": number}))
        else:
            rows[key] = {"n": number}
            changes.append(Change(number=number, key=key, doc={"n": number}))
    with Failing(bench.server, seed, status) as gateway:
        bench.url = gateway.url
        lane = Lane(pipeline=bench.index, retry=Retry(attempts=1000, first_s=0.01, max_s=0.02))
        with bench.opened(lane, batch_rows=30) as sink:
            for start in range(0, 400, 100):
                sink.write(batch(bench.index, *changes[start : start + 100]))
            receipt = sink.flush()
        assert gateway.failed
    assert (receipt.messages, receipt.failures) == (400, ())
    assert bench.documents == rows


def test_a_throttled_request_is_sent_again_when_asked(bench: Bench) -> None:
    class Throttling(Gateway):
        answers = 0

        def instead(self, request: HttpRequest) -> HttpResponse | None:
            if not request.path.startswith("/_bulk"):
                return None
            self.answers += 1
            if self.answers > 2:
                return None
            return HttpResponse(status=429, headers={"retry-after": "0.1"})

    with Throttling(bench.server) as gateway:
        bench.url = gateway.url
        lane = Lane(pipeline=bench.index, retry=Retry(attempts=1))
        assert bench.deliver(Change(number=0, key="a", doc={"n": 1}), lane=lane).messages == 1
        assert gateway.answers == 3


def test_a_cluster_that_is_down(bench: Bench) -> None:
    down = Bench(bench.server, url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(SinkUnreachableError, match="does not answer") as caught:
        down.deliver()
    assert caught.value.hint
    [finding] = SINKS.find(bench.kind).check(down.settings())
    assert "does not answer" in finding.finding


def test_a_node_that_is_down_is_left_out(bench: Bench) -> None:
    bench.url = f"http://127.0.0.1:{free_port()},{bench.server.url}"
    with bench.opened() as sink:
        sink.write(batch(bench.index, Change(number=0, key="a", doc={"n": 1})))
        assert sink.flush().messages == 1


def test_check_names_the_product(bench: Bench) -> None:
    found = list(SINKS.find(bench.kind).check(bench.settings()))
    assert [each.severity for each in found] == ["ok"]
    assert bench.server.version in found[0].finding
    other = "elasticsearch" if bench.kind == "opensearch" else "opensearch"
    sink_type = SINKS.find(other)
    settings = sink_type.settings.model_validate({"type": other, "url": bench.server.url})
    first, second = sink_type.check(settings)
    assert (first.severity, second.severity) == ("warning", "ok")
    assert first.fix == f"Set `type: {bench.kind}`."


def test_an_address_that_is_not_a_cluster(bench: Bench) -> None:
    class Elsewhere(Gateway):
        def instead(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse(body=b"<html>", headers={"content-type": "text/html"})

    with Elsewhere(bench.server) as gateway:
        bench.url = gateway.url
        with pytest.raises(SinkRefusedError, match="not as a cluster"):
            SINKS.find(bench.kind).probe(bench.settings(), name="p")


def test_slices_and_large_batches(bench: Bench) -> None:
    changes = [Change(number=n, key=f"k{n}", doc={"n": n, "text": 'ž"\\'}) for n in range(2500)]
    with bench.opened(compression="gzip") as sink:
        messages = batch(bench.index, *changes).slice(100, 2000)
        sink.write(messages)
        assert sink.flush().messages == 2000
    found = bench.documents
    assert len(found) == 2000
    assert found["k100"] == {"n": 100, "text": 'ž"\\'}
