"""`--from`: every form that is taken, and an error that names them for every other."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tailrace.errors import ConfigError
from tailrace.log.reader import AtLsn, AtTime, Earliest, Latest
from tailrace.log.start import parse_start
from tailrace.position import Lsn
from tailrace.wire.pgtime import PgTime

NOON = AtTime(PgTime.of(datetime(2026, 1, 31, 12, tzinfo=UTC)))


def test_words() -> None:
    assert parse_start("earliest") == Earliest()
    assert parse_start(" Latest ") == Latest()


def test_an_lsn() -> None:
    assert parse_start("16/B374D848") == AtLsn(Lsn.parse("16/B374D848"))
    assert parse_start("0/0") == AtLsn(Lsn(0))


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T12:00:00Z",
        "2026-01-31 12:00",
        "2026-01-31T12:00:00.000000+00:00",
        "2026-01-31T13:00:00+01:00",
        "2026-01-31T07:00-05:00",
    ],
)
def test_a_time_without_a_zone_is_utc(text: str) -> None:
    assert parse_start(text) == NOON


def test_a_day_and_the_ends_of_time() -> None:
    assert parse_start("2000-01-01") == AtTime(0)
    assert isinstance(parse_start("0001-01-01T00:00:00+23:59"), AtTime)
    assert isinstance(parse_start("9999-12-31T23:59:59-23:59"), AtTime)


@pytest.mark.parametrize(
    "text", ["", "yesterday", "16/", "16/XYZ", "123456789/0", "16-B374D848", "25:00", "1769860800"]
)
def test_anything_else_names_the_forms(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_start(text)
    assert repr(text) in str(caught.value)
    for form in ("earliest", "latest", "16/B374D848", "2026-01-31T12:00:00Z"):
        assert form in caught.value.hint
