"""Every sink keeps its promises through the faults of `tests/contract/benches/case.py`.

A task is played by a guard that stops at the first error, as with `park: never`: what was not
flushed is replayed. Nothing here depends on how long something takes.
"""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import SinkError, SinkFencedError, SinkFullError, SinkUnreachableError
from tailrace.pipeline.guard import StoppingGuard
from tailrace.position import ORIGIN
from tailrace.sinks.requests.sink import RequestSink
from tailrace.sinks.retry import Retry
from tests.contract.benches.bench import ONCE, SMALL_LIMIT, number_of
from tests.contract.benches.case import EXEMPT, Case
from tests.contract.benches.registry import ALL, benches
from tests.contract.benches.services import HttpBench
from tests.contract.pipeline import Pipeline, flushes_of
from tests.unit.sinks.rows import message_id, position, rows, with_column
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from tailrace.position import Position
    from tailrace.sinks.contract import Receipt, Sink
    from tests.contract.benches.bench import Bench

KEYS = 12
PATIENT = Retry(attempts=2, first_s=0.001, max_s=0.02)


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with ALL[request.param](request) as made:
        yield made


@pytest.fixture
def new_sink(bench: Bench) -> Iterator[Callable[..., Sink]]:
    """Creates sinks, with the arguments of `Bench.make`; the test need not close them."""
    made = []

    def create(**given: object) -> Sink:
        made.append(bench.make(**given))  # type: ignore[arg-type]
        return made[-1]

    yield create
    for sink in made:
        sink.close()


def documents(
    bench: Bench, numbers: Iterable[int], *, keys: int = KEYS, refused: int = -1
) -> pa.RecordBatch:
    """JSON documents with these numbers, in turn of each key; one that a bench may refuse."""
    chosen = list(numbers)
    pads = ["x" * (SMALL_LIMIT + 1) if number == refused else "" for number in chosen]
    values: dict[str, list[bytes | None]] = {
        "destination": [
            bench.refused_place() if number == refused else bench.place() for number in chosen
        ],
        "key": [b"k%d" % (number % keys) for number in chosen],
        "payload": [
            json.dumps({"n": number, "pad": pad}, separators=(",", ":")).encode()
            for number, pad in zip(chosen, pads, strict=True)
        ],
    }
    batch = rows(chosen)
    for name, column in values.items():
        batch = with_column(batch, name, column)
    return batch


def deliver(bench: Bench, sink: Sink, after: Position, batch: pa.RecordBatch) -> Receipt:
    """What a task does with a micro-batch."""
    sink.open(after)
    return send(bench, sink, batch)


def send(bench: Bench, sink: Sink, batch: pa.RecordBatch) -> Receipt:
    """Write and flush, with an open sink."""
    guard = StoppingGuard(sink, flushes_of(bench))
    guard.write(batch)
    return guard.flush()


def deliver_at_last(bench: Bench, sink: Sink, after: Position, batch: pa.RecordBatch) -> None:
    """What a pipeline does: errors that pass are retried."""
    wait_for(lambda: fails(lambda: deliver(bench, sink, after, batch)) is None, "the sink")


def fails(call: Callable[[], object]) -> SinkError | None:
    """The error of a call if it is one that passes; None if there is none. Others are raised."""
    try:
        call()
    except SinkUnreachableError as error:
        return error
    return None


def check(bench: Bench, numbers: Iterable[int], *, keys: int = KEYS, repeats: bool = False) -> int:
    """These messages have arrived, once unless repeats are allowed, and each key in order if its
    destination has one.

    Returns how many were repeated.
    """
    found = [(place, number_of(payload)) for place, _, payload in bench.delivered()]
    first = list(dict.fromkeys(found))
    assert sorted(number for _, number in first) == sorted(numbers)
    for key in range(keys):
        for destination in {place for place, _ in first}:
            own = [n for place, n in first if place == destination and n % keys == key]
            assert own == sorted(own) or not bench.ordered
    repeated = len(found) - len(first)
    assert repeats or not repeated
    return repeated


@pytest.mark.parametrize("bench", benches(Case.REFUSED), indirect=True)
def test_one_refused_message_is_parked_and_released_in_order(bench: Bench, tmp_path: Path) -> None:
    """GIVEN a message that is refused in the middle of a batch THEN it and later ones of its key
    are parked, and all others arrive in order; WHEN it is retried THEN they follow it."""

    def ids(*numbers: int) -> list[str]:
        return [message_id(number).decode() for number in numbers]

    pipeline = Pipeline(bench, tmp_path / "parked")
    pipeline.deliver(documents(bench, range(3), keys=3))
    pipeline.commit(position(2))
    bench.refuse()
    if bench.refused_until_restart:
        pipeline.restart()
    parked = (7, 10) if bench.ordered else (7,)
    receipt = pipeline.deliver(documents(bench, range(3, 12), keys=3, refused=7))
    assert receipt.parked == len(parked)
    pipeline.commit(position(11))
    assert pipeline.parked() == ids(*parked)
    assert pipeline.deliver(documents(bench, range(12, 15), keys=3)).parked == 1
    pipeline.commit(position(14))
    assert pipeline.parked() == ids(*parked, 13)
    check(bench, set(range(15)) - {*parked, 13}, keys=3)
    bench.accept()
    if bench.refused_until_restart:
        pipeline.restart()
    pipeline.order("retry", 7)
    release = pipeline.release()
    assert pipeline.deliver_again(release).messages == len(parked) + 1
    pipeline.commit(release.last)
    assert pipeline.parked() == []
    assert pipeline.deliver(documents(bench, range(15, 18), keys=3)).messages == 3
    check(bench, range(18), keys=3)
    pipeline.close()


@pytest.mark.parametrize("bench", benches(Case.PARTIAL), indirect=True)
def test_requests_that_fail_in_part(bench: Bench, new_sink: Callable[..., Sink], seed: int) -> None:
    """GIVEN a destination that fails some messages of each request THEN these are sent again, the
    accepted ones are not, and no key overtakes."""
    with bench.failing_in_part(random.Random(seed)):
        receipt = deliver(bench, new_sink(), ORIGIN, documents(bench, range(50), keys=7))
    assert receipt.messages == 50
    check(bench, range(50), keys=7)


@pytest.mark.parametrize("bench", benches(Case.ALWAYS), indirect=True)
def test_a_message_that_fails_whenever_it_is_sent(bench: Bench, tmp_path: Path) -> None:
    """GIVEN a message that always fails for now THEN it is parked; WHEN it is retried and fails
    again THEN it stays parked and others flow; WHEN another one is alone in its batch THEN it is
    parked after the wait; WHEN the destination recovers THEN all arrive in order."""

    def ids(*numbers: int) -> list[str]:
        return [message_id(number).decode() for number in numbers]

    parked = (7, 10) if bench.ordered else (7,)
    with bench.failing_for_now():
        pipeline = Pipeline(bench, tmp_path / "parked", folder=tmp_path / "sink", retry=PATIENT)
        receipt = pipeline.deliver(documents(bench, range(12), keys=3, refused=7))
        assert receipt.parked == len(parked)
        pipeline.commit(position(11))
        assert pipeline.parked() == ids(*parked)
        pipeline.order("retry", 7)
        release = pipeline.release()
        assert pipeline.deliver_again(release).messages == 0
        pipeline.commit(release.last)
        assert pipeline.parked() == ids(*parked)
        alone = documents(bench, [12], keys=3, refused=12)
        with pytest.raises((SinkUnreachableError, SinkFullError)):
            pipeline.deliver(alone)
        pipeline.restart(retry=PATIENT.model_copy(update={"alone_s": 0}))
        assert pipeline.deliver(alone).parked == 1
        pipeline.commit(position(12))
        assert pipeline.parked() == ids(*parked, 12)
        assert pipeline.deliver(documents(bench, range(13, 16), keys=3)).parked == 2
        pipeline.commit(position(15))
        assert pipeline.parked() == ids(*parked, 12, 13, 15)
        check(bench, set(range(16)) - {*parked, 12, 13, 15}, keys=3)
    pipeline.restart()
    pipeline.order("retry", 7)
    pipeline.order("retry", 12)
    release = pipeline.release()
    assert pipeline.deliver_again(release).messages == len(parked) + 3
    pipeline.commit(release.last)
    assert pipeline.parked() == []
    check(bench, range(16), keys=3)
    pipeline.close()


@pytest.mark.parametrize("bench", benches(Case.THROTTLED), indirect=True)
def test_a_destination_that_asks_to_wait(bench: Bench, new_sink: Callable[..., Sink]) -> None:
    """Nothing is sent until the time has passed, then everything is. No attempt is counted."""
    now_s = 1000.0
    with bench.throttling(20) as throttle:
        sink = new_sink(retry=ONCE)
        assert isinstance(sink, RequestSink)
        sink.clock = lambda: now_s
        sink.open(ORIGIN)
        sink.write(documents(bench, range(KEYS)))
        # By this clock no time passes: the flush ends when all requests have their answers.
        assert sink.flush(end=False).messages == 0
        asked = throttle.answers
        assert asked
        throttle.lift()
        now_s += 19
        assert sink.flush(end=False).messages == 0
        assert bench.delivered() == []
        now_s += 2
        assert sink.flush().messages == KEYS
        assert throttle.answers == asked
    check(bench, range(KEYS))


@pytest.mark.parametrize("bench", ["http"], indirect=True)
def test_a_message_whose_retry_has_to_wait_holds_up_no_other_key(
    bench: Bench, new_sink: Callable[..., Sink]
) -> None:
    assert isinstance(bench, HttpBench)
    now_s = 1000.0
    sink = new_sink()
    assert isinstance(sink, RequestSink)
    sink.clock = lambda: now_s
    sink.open(ORIGIN)
    with bench.delaying(4, after_s=20):
        sink.write(documents(bench, range(3 * KEYS)))
        assert sink.flush(end=False).messages == 3 * KEYS - 3
        others = {n for n in range(3 * KEYS) if n % KEYS != 4}
        check(bench, others)
    now_s += 19
    assert sink.flush(end=False).messages == 0
    now_s += 2
    assert sink.flush().messages == 3
    check(bench, range(3 * KEYS))


@pytest.mark.parametrize("bench", benches(Case.CUTS), indirect=True)
def test_connections_that_are_cut_at_random_points(
    bench: Bench, new_sink: Callable[..., Sink], seed: int, tmp_path: Path
) -> None:
    rng, done, upto = random.Random(seed), 0, 90
    with bench.proxy() as proxy:
        sink = new_sink(port=proxy.port, folder=tmp_path / "accepted")
        while done < upto:
            end = min(done + rng.randint(10, 40), upto)
            after = position(done - 1) if done else ORIGIN
            for _ in range(3):
                # Every batch has more bytes than the first cut waits for.
                proxy.cut_after(int(10 ** rng.uniform(1, 4 if proxy.cuts else 2.5)))
                error = fails(
                    lambda: deliver(bench, sink, after, documents(bench, range(done, end)))  # noqa: B023
                )
                if error is None:
                    break
                if rng.random() < 0.3:
                    sink.close()
                    sink = new_sink(port=proxy.port, folder=tmp_path / "accepted")
            else:
                proxy.heal()
                deliver_at_last(bench, sink, after, documents(bench, range(done, end)))
            done = end
        assert proxy.cuts
    check(bench, range(upto), repeats=not bench.once)


@pytest.mark.parametrize("bench", benches(Case.LOST_ANSWER), indirect=True)
def test_an_answer_that_is_lost_after_the_write(
    bench: Bench, new_sink: Callable[..., Sink]
) -> None:
    """GIVEN a server that has accepted a batch WHEN the connection is cut before the sink receives
    the answer, and another sink replays the batch THEN nothing is lost, and nothing is there twice
    in a destination that has each message once."""
    with ThreadPoolExecutor(1) as pool, bench.proxy() as proxy:
        first = new_sink(port=proxy.port, retry=ONCE)
        deliver(bench, first, ORIGIN, documents(bench, range(KEYS)))
        batch = documents(bench, range(KEYS, 2 * KEYS))
        first.open(position(KEYS - 1))
        proxy.mute(bench.acceptance)
        attempt = pool.submit(fails, lambda: send(bench, first, batch))
        wait_for(lambda: proxy.discarded_bytes, "an answer")
        if bench.visible_at_once:
            arrived = {number_of(payload) for _, _, payload in bench.delivered()}
            wait_for(lambda: accumulate(bench, arrived) == 2 * KEYS, lambda: arrived)
        proxy.heal()
        attempt.result()
    second = new_sink()
    deliver(bench, second, position(KEYS - 1), batch)
    deliver(bench, second, position(2 * KEYS - 1), documents(bench, range(2 * KEYS, 3 * KEYS)))
    repeated = check(bench, range(3 * KEYS), repeats=not bench.once)
    assert bench.once or repeated, "the bench says that its destination has repeated messages"


def accumulate(bench: Bench, arrived: set[int]) -> int:
    """How many messages have arrived by now."""
    arrived |= {number_of(payload) for _, _, payload in bench.delivered()}
    return len(arrived)


@pytest.mark.parametrize("opened", [False, True], ids=["connecting", "connected"])
@pytest.mark.parametrize("bench", benches(Case.STALL), indirect=True)
def test_a_server_that_does_not_answer(
    bench: Bench, new_sink: Callable[..., Sink], tmp_path: Path, opened: bool
) -> None:
    """GIVEN a server that accepts connections and never answers THEN the sink fails with an error
    that passes; WHEN the server answers again THEN the sink delivers."""
    start = KEYS if opened else 0
    after, batch = position(start - 1) if opened else ORIGIN, documents(bench, range(start, 24))
    with bench.proxy() as proxy:
        sink = new_sink(port=proxy.port, timeout_s=1, retry=ONCE, folder=tmp_path / "accepted")
        if opened:
            deliver_at_last(bench, sink, ORIGIN, documents(bench, range(start)))
            sink.open(after)
        proxy.black_hole()
        assert fails(lambda: deliver(bench, sink, after, batch)) is not None
        proxy.heal()
        deliver_at_last(bench, sink, after, batch)
    check(bench, range(24), repeats=not bench.once)


@pytest.mark.parametrize("bench", benches(Case.ZOMBIE), indirect=True)
def test_a_sink_that_was_replaced_wakes_up(bench: Bench, new_sink: Callable[..., Sink]) -> None:
    """GIVEN a sink with messages that are not flushed WHEN another one of its lane delivers, and
    the first one continues THEN it is fenced, or what it writes is there already."""
    zombie, successor, third = (new_sink() for _ in range(3))
    deliver(bench, zombie, ORIGIN, documents(bench, range(KEYS)))
    zombie.open(position(KEYS - 1))
    zombie.write(documents(bench, range(KEYS, 2 * KEYS)))
    replay = documents(bench, range(KEYS, 3 * KEYS))
    deliver(bench, successor, position(KEYS - 1), replay)
    later = documents(bench, range(2 * KEYS, 3 * KEYS))
    errors = []
    for call in (zombie.flush, lambda: zombie.write(later), zombie.flush):
        try:
            call()
        except SinkError as error:
            errors.append(error)
    # The first flush may find everything stored by its own sink.
    assert bench.fences == bool(errors)
    assert all(isinstance(error, SinkFencedError) for error in errors[:1])
    check(bench, range(3 * KEYS), repeats=not bench.once)
    deliver(bench, third, ORIGIN, documents(bench, range(4 * KEYS)))
    check(bench, range(4 * KEYS), repeats=not bench.once)


@pytest.mark.parametrize(
    ("case", "bench"),
    [
        pytest.param(case, *param.values, marks=param.marks, id=f"{case.name}-{param.values[0]}")
        for case in Case
        for param in benches(case, exempt=True)
    ],
    indirect=["bench"],
)
def test_a_bench_without_a_case_cannot_have_it(case: Case, bench: Bench) -> None:
    assert not bench.can(case)


def test_exemptions_name_benches() -> None:
    assert {name for reasons in EXEMPT.values() for name in reasons} <= set(ALL)
    assert set(EXEMPT) == set(Case)


@pytest.mark.parametrize("bench", benches(Case.ZOMBIE), indirect=True)
def test_benches_expect_what_sinks_promise(bench: Bench) -> None:
    promised = bench.kind.promises.delivery
    words = ("exactly once", "effectively once") if bench.once else ("at least once",)
    assert any(each in promised for each in words)
    assert bench.once or not bench.kind.stores_position(bench.settings())
    assert bench.ordered != ("written in any order" in bench.kind.promises.order)
