"""Subjects: which are valid, and which a stream accepts.

A destination comes from a user's expression. One with a blank or a line break would corrupt the
protocol, so every destination is validated before it is sent.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import PoisonedError, SinkRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.errors import SinkError

_TOKEN = rb"[^\x00-\x20\x7f.*>]+"
_SUBJECT = re.compile(rb"%s(?:\.%s)*" % (_TOKEN, _TOKEN))
_SUBJECT_BYTES = 3000
"""A server reads control lines of at most 4,096 bytes by default."""
_CACHE_SIZE = 100_000
_PLACE = re.compile(r"\{[a-z]+\}")


def well_formed(subject: bytes) -> bool:
    """Whether a message can be published to the subject.

    >>> well_formed(b"cdc.orders.insert"), well_formed(b"cdc..insert"), well_formed(b"cdc.*")
    (True, False, False)
    """
    return len(subject) <= _SUBJECT_BYTES and _SUBJECT.fullmatch(subject) is not None


def matches(pattern: str, subject: str) -> bool:
    """Whether a pattern with `*` and `>` matches a subject, or every match of another pattern.

    >>> matches("cdc.>", "cdc.orders.insert"), matches("cdc.*", "cdc.orders.insert")
    (True, False)
    >>> matches("cdc.*.*", "cdc.>")
    False
    """
    parts, other = pattern.split("."), subject.split(".")
    for index, part in enumerate(parts):
        if part == ">":
            return len(other) > index
        if index >= len(other) or other[index] == ">":
            return False
        if part not in ("*", other[index]):
            return False
    return len(parts) == len(other)


def overlap(one: str, other: str) -> bool:
    """Whether a subject can match both patterns.

    >>> overlap("cdc.>", "*.orders"), overlap("cdc.*", "cdc.a.b"), overlap("a.*.x", "a.b.*")
    (True, False, True)
    """
    parts, others = one.split("."), other.split(".")
    for part, against in zip(parts, others, strict=False):
        if ">" in (part, against):
            return True
        if part != against and "*" not in (part, against):
            return False
    return len(parts) == len(others)


def pattern_of(template: str) -> str:
    """The pattern of all subjects of a template such as `cdc.{table}.{operation}`."""
    tokens = template.split(".")
    return ".".join("*" if _PLACE.search(token) else token for token in tokens)


class Subjects:
    """The subjects that a stream accepts. Each destination is validated once."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(patterns)
        self._valid: set[bytes] = set()

    def unfit(self, destinations: pa.Array) -> dict[int, SinkError]:
        """The rows with invalid destinations, and why they are."""
        if len(self._valid) > _CACHE_SIZE:
            self._valid.clear()
        reasons: dict[bytes, SinkError] = {}
        for destination in pc.unique(destinations).to_pylist():
            if destination not in self._valid:
                reason = self._reason(destination)
                if reason is not None:
                    reasons[destination] = reason
                else:
                    self._valid.add(destination)
        if not reasons:
            return {}
        bad = pc.is_in(destinations, pa.array(list(reasons), destinations.type))
        rows = pc.indices_nonzero(bad).to_pylist()
        return {row: reasons[destinations[row].as_py()] for row in rows}

    def _reason(self, destination: bytes) -> SinkError | None:
        shown = repr(destination[:200].decode("utf-8", "replace"))
        if not well_formed(destination):
            return PoisonedError(
                f"its destination {shown} is not a valid NATS subject",
                hint="A subject is tokens separated by dots, without blanks, * and >.",
            )
        text = destination.decode("utf-8", "replace")
        if not any(matches(pattern, text) for pattern in self._patterns):
            accepted = ", ".join(self._patterns)
            return SinkRefusedError(
                f"the stream does not accept its subject {shown}, only {accepted}",
                hint="Change `route` or `subject`, or add the subject to the stream.",
            )
        return None
