from __future__ import annotations

import pyarrow as pa
import pytest

from tailrace.errors import PoisonedError, SinkRefusedError
from tailrace.jetstream.subjects import Subjects, matches, pattern_of, well_formed


@pytest.mark.parametrize(
    ("pattern", "subject", "taken"),
    [
        ("cdc.>", "cdc.a", True),
        ("cdc.>", "cdc", False),
        (">", "a.b", True),
        ("cdc.*", "cdc.a.b", False),
        ("cdc.*.insert", "cdc.a.insert", True),
        ("cdc.*.insert", "cdc.a.update", False),
        ("cdc.a", "cdc.a", True),
        ("cdc.a.b", "cdc.a", False),
        ("cdc.>", "cdc.*.*", True),
        ("cdc.*.*", "cdc.*.*", True),
        ("cdc.a.*", "cdc.*.*", False),
        ("cdc.*.*", "cdc.>", False),
    ],
)
def test_patterns(pattern: str, subject: str, taken: bool) -> None:
    assert matches(pattern, subject) is taken


@pytest.mark.parametrize(
    "subject",
    [
        b"",
        b".",
        b"a.",
        b".a",
        b"a..b",
        b"a b",
        b"a\r\nPUB x 1",
        b"a.*",
        b"a.>",
        b"a\0",
        b"a" * 4000,
    ],
)
def test_invalid_subjects(subject: bytes) -> None:
    assert not well_formed(subject)


def test_templates() -> None:
    assert pattern_of("cdc.{table}.{operation}") == "cdc.*.*"
    assert pattern_of("{database}.cdc.t_{table}") == "*.cdc.*"


def test_rows_with_invalid_destinations_are_named() -> None:
    subjects = Subjects(["cdc.>", "other"])
    assert subjects.unfit(pa.array([], pa.binary())) == {}
    assert subjects.unfit(pa.array([b"cdc.a", b"other", b"cdc.a"], pa.binary())) == {}
    found = subjects.unfit(pa.array([b"cdc.a", b"x.y", b"bad one", b"x.y"], pa.binary()))
    assert list(found) == [1, 2, 3]
    assert isinstance(found[1], SinkRefusedError)
    assert isinstance(found[2], PoisonedError)
    assert "bad one" in str(found[2])
    assert found[3] is found[1]
