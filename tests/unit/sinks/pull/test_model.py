"""The store against a model that is a list: random calls, restarts and interrupted transactions.

The model states the promises without any index: a message is delivered if no earlier one of its
groups waits or is out, nothing is out twice, and what was added is there until it is acknowledged
or dropped.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tailrace.sinks.pull.database import DELAYED, EXHAUSTED, OUT, WAITING
from tailrace.sinks.pull.queue import DeliveryId, Rules
from tailrace.sinks.pull.succession import FIRST
from tests.unit.sinks.pull.stores import Change, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MAX_OUT, MAX_DELIVERIES = 8, 3
KEYS = st.sampled_from("abc")
CHANGES = st.lists(
    st.one_of(
        st.builds(Change, KEYS, table=st.integers(1, 2)),
        st.builds(Change, KEYS, former=KEYS),
        st.just(Change(None)),
    ),
    min_size=1,
    max_size=6,
)


@dataclass
class Message:
    number: int
    change: Change
    state: int = WAITING
    at: int = 0
    token: int | None = None
    deliveries: int = 0
    free: bool = False
    """Whether it holds back no other, and waits for none."""

    def waits_for(self, other: Message) -> bool:
        """Whether it may not be delivered before an earlier message."""
        own, theirs = self.change, other.change
        if self.free or other.free or own.table != theirs.table:
            return False
        if own.key is None or theirs.key is None:
            return True
        return bool({own.key, own.former} & {theirs.key, theirs.former} - {None})


@dataclass
class Model:
    blocks: bool
    messages: list[Message] = field(default_factory=list)
    """What is neither acknowledged nor dropped, in order."""

    def receive(self, limit: int, token: int, at: int) -> list[tuple[int, int]]:
        limit = min(limit, MAX_OUT - sum(each.state == OUT for each in self.messages))
        picked: list[Message] = []
        for position, each in enumerate(self.messages):
            if len(picked) >= limit:
                break
            before = [one for one in self.messages[:position] if each.waits_for(one)]
            together = all(
                one in picked and (one.change.key is None) == (each.change.key is None)
                for one in before
            )
            if each.state == WAITING and together:
                picked.append(each)
        for each in picked:
            each.state, each.token, each.at = OUT, token, at
            each.deliveries += 1
        return [(each.number, each.deliveries) for each in picked]

    def known(self, ids: Iterable[DeliveryId]) -> list[Message]:
        return [
            each
            for each in self.messages
            if each.state == OUT and (each.number, each.token) in set(ids)
        ]

    def give_back(self, chosen: list[Message], *, at: int = 0) -> None:
        later = self.later(chosen)
        for each in later:
            each.state, each.token = WAITING, None
            each.deliveries -= 1
        for each in chosen:
            if each in later:
                continue
            each.token = None
            if each.deliveries >= MAX_DELIVERIES:
                each.state, each.free = EXHAUSTED, not self.blocks
            else:
                each.state, each.at = (DELAYED, at) if at else (WAITING, 0)

    def later(self, chosen: list[Message]) -> list[Message]:
        found = list(chosen)
        for each in self.messages:
            tied = any(one.number < each.number and each.waits_for(one) for one in found)
            if each.state == OUT and tied:
                found.append(each)
        return [
            each
            for each in self.messages
            if each.state == OUT
            and any(one.number < each.number and each.waits_for(one) for one in found)
        ]

    def expire(self, now: int) -> None:
        self.give_back([each for each in self.messages if each.state == OUT and each.at <= now])
        for each in self.messages:
            if each.state == DELAYED and each.at <= now:
                each.state = WAITING


class Consumers(RuleBasedStateMachine):
    @initialize(blocks=st.booleans())
    def create(self, blocks: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="trpull-"))
        rules = Rules(
            max_out=MAX_OUT, max_deliveries=MAX_DELIVERIES, max_bytes=2**20, blocks=blocks
        )
        self.store = Store(self.folder, rules)
        self.model = Model(blocks)
        self.now = 1000
        self.tokens = 0
        self.ids: list[DeliveryId] = []
        """Every delivery that there ever was."""

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)

    @rule(changes=CHANGES)
    def add(self, changes: list[Change]) -> None:
        start = self.store.count + 1
        assert self.store.add(changes, now_ms=self.now)
        self.model.messages += [Message(start + at, each) for at, each in enumerate(changes)]

    @rule(limit=st.integers(1, 6), visibility=st.integers(1, 50))
    def receive(self, limit: int, visibility: int) -> None:
        self.tokens += 1
        with self.store.queue.transaction():
            self.expire()
            found = self.store.queue.receive(
                limit, token=self.tokens, now_ms=self.now, visibility_ms=visibility
            )
        expected = self.model.receive(limit, self.tokens, self.now + visibility)
        assert [(int(each.id), each.deliveries) for each in found] == expected
        self.ids += [each.delivery for each in found]

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        ids = self.some(data)
        with self.store.queue.transaction():
            self.expire()
            known = self.store.queue.acknowledge(ids)
        expected = self.model.known(ids)
        assert sorted(each.seq for each in known) == [each.number for each in expected]
        self.remove(expected)

    @rule(data=st.data(), delay=st.sampled_from([0, 0, 5, 60]))
    def reject(self, data: st.DataObject, delay: int) -> None:
        ids = self.some(data)
        with self.store.queue.transaction():
            self.expire()
            known = self.store.queue.reject(ids, now_ms=self.now, delay_ms=delay)
        expected = self.model.known(ids)
        assert sorted(each.seq for each in known) == [each.number for each in expected]
        self.model.give_back(expected, at=self.now + delay if delay else 0)

    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        ids = self.some(data)
        with self.store.queue.transaction():
            self.expire()
            known = self.store.queue.extend(ids, now_ms=self.now, visibility_ms=100)
        expected = self.model.known(ids)
        assert sorted(each.seq for each in known) == [each.number for each in expected]
        for each in expected:
            each.at = self.now + 100

    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        ids = self.some(data)
        with self.store.queue.transaction():
            self.expire()
            known = self.store.queue.take_back(ids)
        chosen = self.model.known(ids)
        assert sorted(each.seq for each in known) == [each.number for each in chosen]
        both = {each.number: each for each in [*chosen, *self.model.later(chosen)]}
        for each in both.values():
            each.state, each.token = WAITING, None
            each.deliveries -= 1

    @rule(passed=st.integers(1, 60))
    def wait(self, passed: int) -> None:
        self.now += passed

    @precondition(lambda self: any(each.state == EXHAUSTED for each in self.model.messages))
    @rule(data=st.data(), drop=st.booleans(), every=st.booleans())
    def decide_exhausted(self, data: st.DataObject, drop: bool, every: bool) -> None:
        exhausted = [each for each in self.model.messages if each.state == EXHAUSTED]
        chosen = exhausted if every else [data.draw(st.sampled_from(exhausted))]
        numbers = None if every else [each.number for each in chosen]
        with self.store.queue.transaction():
            decide = self.store.queue.drop if drop else self.store.queue.retry
            assert decide(numbers) == len(chosen)
        if drop:
            self.remove(chosen)
        for each in chosen:
            each.state, each.deliveries = WAITING, 0

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store.open()

    @rule(data=st.data())
    def crash_before_the_commit(self, data: st.DataObject) -> None:
        ids = self.some(data)
        calls: list[Callable[[], Any]] = [
            lambda: self.store.queue.acknowledge(ids),
            lambda: self.store.queue.receive(3, token=1, now_ms=self.now, visibility_ms=5),
            lambda: self.store.queue.reject(ids, now_ms=self.now, delay_ms=1),
        ]
        self.store.queue.begin()
        data.draw(st.sampled_from(calls))()
        self.store.queue.connection.close()
        self.store.open()

    @invariant()
    def the_store_is_as_the_model(self) -> None:
        if not hasattr(self, "store"):
            return
        execute = self.store.queue.connection.execute
        found = execute("SELECT seq, state, token, deliveries FROM messages ORDER BY seq")
        expected = [
            (each.number, each.state, each.token, each.deliveries) for each in self.model.messages
        ]
        assert found.fetchall() == expected
        totals = self.store.queue.totals()
        states = [each.state for each in self.model.messages]
        assert (totals.messages, totals.out, totals.exhausted) == (
            len(states), states.count(OUT), states.count(EXHAUSTED)
        )  # fmt: skip
        size = "SELECT coalesce(sum(bytes), 0) FROM messages"
        assert totals.bytes == execute(size).fetchone()[0]
        assert totals.messages == execute("SELECT count(*) FROM bodies").fetchone()[0]
        wrong = execute(f"SELECT count(*) FROM messages m WHERE m.first IS NOT ({FIRST})")
        assert wrong.fetchone()[0] == 0

    def expire(self) -> None:
        self.store.queue.expire(now_ms=self.now)
        self.model.expire(self.now)

    def remove(self, messages: list[Message]) -> None:
        gone = {each.number for each in messages}
        self.model.messages = [each for each in self.model.messages if each.number not in gone]

    def some(self, data: st.DataObject) -> list[DeliveryId]:
        """Some deliveries, most of them recent."""
        recent = self.ids[-12:] or [DeliveryId(1, 1)]
        return data.draw(st.lists(st.sampled_from(recent), max_size=6))


QUICK = settings(
    deadline=None,
    max_examples=25,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_random_calls() -> None:
    run_state_machine_as_test(Consumers, settings=QUICK)


@pytest.mark.long
def test_many_random_calls() -> None:
    run_state_machine_as_test(Consumers, settings=settings(QUICK, max_examples=500))
