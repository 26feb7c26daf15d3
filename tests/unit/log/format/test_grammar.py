"""The grammar of entries: what real entries pass, and every lie of a header that is noticed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tailrace.log.format.entry import Entry, Kind, pack
from tailrace.log.format.grammar import Grammar
from tailrace.position import Lsn, Position
from tests.fix_log import (
    START,
    TIME,
    Session,
    fragment_entries,
    loose,
    random_log,
    transaction,
    whole_entry,
)

WHOLE = whole_entry([transaction(0), loose(0x1180), transaction(1)], Session(), START, 0)
PIECES = fragment_entries(
    transaction(0, rows=6, origin="o"), Session(), [4, 6, 8], START, Position(START, 0)
)
LATER = Position(Lsn(0x7000), 0)


def problems(*entries: Entry) -> list[str]:
    grammar = Grammar()
    return [problem for entry in entries for problem in grammar.problems(entry)]


def with_messages(entry: Entry, messages: list[bytes]) -> Entry:
    offsets, body = pack(messages)
    return replace(entry, offsets=offsets, body=body)


def messages_of(entry: Entry) -> list[bytes]:
    return [bytes(message) for message in entry.messages()]


def test_real_entries_pass() -> None:
    for seed in range(30):
        made = random_log(random.Random(seed))
        assert problems(*made.entries) == []


@pytest.mark.parametrize(
    "lie",
    [
        {"changes": 4},
        {"transactions": 3},
        {"schemas": 0},
        {"first": LATER},
        {"last": WHOLE.first},
        {"last": LATER},
        {"end_lsn": Lsn(0x7000)},
        {"last_time": TIME - 1},
        {"ends": False},
        {"kind": Kind.SCHEMA},
        {"kind": Kind.PROGRESS},
        {"kind": Kind.FRAGMENT},
    ],
    ids=str,
)
def test_a_header_that_lies_about_whole_transactions_is_noticed(lie: dict[str, object]) -> None:
    assert problems(replace(WHOLE, **lie))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "lie",
    [
        {"begins": True},
        {"ends": True},
        {"changes": 9},
        {"first": Position(transaction(0).lsn, 7)},
        {"last": Position(transaction(0).lsn, 9)},
        {"kind": Kind.TRANSACTIONS},
    ],
    ids=str,
)
def test_a_header_that_lies_about_a_fragment_is_noticed(lie: dict[str, object]) -> None:
    assert problems(*PIECES) == []
    assert problems(PIECES[0], replace(PIECES[1], **lie))  # type: ignore[arg-type]


def test_messages_out_of_order_are_noticed() -> None:
    good = messages_of(WHOLE)
    kinds = [message[:1] for message in good]
    commit, begin = kinds.index(b"C"), kinds.index(b"B")
    row, said = kinds.index(b"I"), kinds.index(b"M")
    second = len(kinds) - 1 - kinds[::-1].index(b"B")
    for wrong in (
        good[1:],
        good[:-1],
        [*good[:commit], *good[commit + 1 :]],
        [good[row], *good],
        [*good[: begin + 1], good[said], *good[begin + 1 :]],
        [*good[: begin + 1], good[begin], *good[begin + 1 :]],
        [*good[second:], *good[:second]],
        [*good, b"Q"],
        [message for message in good if message[:1] != b"R"],
    ):
        assert problems(with_messages(WHOLE, wrong))


def test_a_commit_of_another_transaction_is_noticed() -> None:
    good = messages_of(WHOLE)
    kinds = [message[:1] for message in good]
    at = kinds.index(b"C")
    assert problems(with_messages(WHOLE, [*good[:at], good[-1], *good[at + 1 :]]))


def test_a_fragment_whose_begin_is_of_another_lsn_is_noticed() -> None:
    other = fragment_entries(transaction(1, rows=6), Session(), [4], START, Position(START, 0))
    assert problems(with_messages(PIECES[0], messages_of(other[0])))
