"""A pipeline's consumer: it reads the stream as anyone would, and checks it against the oracle.

Several tests share a system, whose streams only grow: a consumer reads each message once, goes on
where it was, and remembers all ids and what the changes have come to.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from tests.faults.load import KEYS, ROLLED_BACK
from tests.jetstream import received

if TYPE_CHECKING:
    from tests.jetstream import Received

Tables = dict[str, dict[Any, dict[str, Any]]]


class Consumer:
    """Everything a stream has ever held, and the tables it makes."""

    def __init__(self, name: str, pipeline: dict[str, Any]) -> None:
        self._name = name
        self._url = pipeline["sink"]["url"]
        self._stream = pipeline["sink"]["stream"]["name"]
        self._ordered = pipeline.get("lanes", 1) == 1
        self._ids: list[str] = []
        self._tables: Tables = {table: {} for table in KEYS}

    def check(self, committed: list[str], tables: Tables) -> None:
        """Read on. All that was committed is there, once, in order; applied, it is the tables."""
        found = received(self._url, self._stream, after=len(self._ids))
        self._ids.extend(message.id for message in found)
        self._check_ids(committed)
        for message in found:
            self._apply(message)
        assert self._tables == tables, f"{self._name}: replayed, it is not the tables"

    def _check_ids(self, committed: list[str]) -> None:
        name, ids = self._name, self._ids
        twice = [each for each, count in collections.Counter(ids).items() if count > 1]
        assert not twice, f"{name}: {len(twice)} twice, such as {twice[:5]}"
        there = set(ids)
        missing = [each for each in committed if each not in there]
        assert not missing, f"{name}: {len(missing)} missing, such as {missing[:5]}"
        if self._ordered:
            assert ids == committed, f"{name}: {_first_difference(ids, committed)}"
        else:
            assert sorted(ids) == sorted(committed), f"{name}: not what was committed"

    def _apply(self, message: Received) -> None:
        change = message.json
        rows, key = self._tables[change["table"]], KEYS[change["table"]]
        before, after = change["before"], change["after"]
        assert ROLLED_BACK not in message.payload.decode()
        if change["op"] == "truncate":
            rows.clear()
            return
        old = before or after
        was = rows.pop(tuple(old[column] for column in key), None)
        if change["op"] != "insert":
            assert was is not None, f"{change['op']} of a row that is not there: {change}"
        if after is not None:
            assert was or not change["unchanged"]
            kept = {column: was[column] for column in change["unchanged"]} if was else {}
            rows[tuple(after[column] for column in key)] = after | kept


def _first_difference(ids: list[str], committed: list[str]) -> str:
    pairs = enumerate(zip(ids, committed, strict=False))
    at = next((at for at, (one, other) in pairs if one != other), min(len(ids), len(committed)))
    return f"{ids[at - 2 : at + 5]} at {at}, committed were {committed[at - 2 : at + 5]}"
