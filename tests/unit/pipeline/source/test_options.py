"""The options of `format("tailrace")`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.log.reader import Earliest, Latest
from tailrace.pipeline.source.options import HELP, Options
from tailrace.position import Lsn, Position


def test_a_log_is_enough() -> None:
    options = Options.of({"log": "/data/log"})
    assert options.log == Path("/data/log")
    assert (options.frame, options.partitions, options.facts) == ("changes", 1, True)
    assert options.start == Earliest()


def test_a_dsn_has_a_log_folder_named_after_its_slot() -> None:
    options = Options.of({"dsn": "host=db", "slot": "mine"})
    assert options.log == Path("tailrace-data/mine").absolute()


def test_names_of_options_ignore_case_as_in_spark() -> None:
    options = Options.of({"LOG": "/l", "maxrowspertrigger": "5", "STARTINGPOSITION": "latest"})
    assert options.max_rows == 5
    assert options.start == Latest()


def test_a_table_selects_the_table_frame() -> None:
    options = Options.of({"log": "/l", "table": "public.users", "columns": " id, name ,"})
    assert options.frame == "table"
    assert options.columns == ("id", "name")
    assert options.tables.match("public", "users")
    assert not options.tables.match("public", "orders")


def test_an_exact_position_is_parsed() -> None:
    options = Options.of({"log": "/l", "startingAfter": "0/16B3748.3"})
    assert options.after == Position(Lsn(0x16B3748), 3)


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({}, "needs", ""),
        ({"log": "/l", "tabels": "x"}, "unknown option 'tabels'", "Did you mean tables?"),
        ({"log": "/l", "zzz": "x"}, "unknown option 'zzz'", "The options are log, dsn"),
        ({"log": "/l", "frame": "rows"}, "got 'rows'", ""),
        ({"log": "/l", "partitions": "0"}, "partitions must be a whole number above 0", ""),
        ({"log": "/l", "holdSeconds": "x"}, "holdSeconds must be .* got 'x'", ""),
        ({"log": "/l", "startingAfter": "x"}, "startingAfter: ", ""),
    ],
)
def test_invalid_options_are_refused(given: dict[str, str], message: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Options.of(given)
    assert caught.value.hint.startswith(hint)


def test_every_option_has_a_help_text() -> None:
    assert all(text.endswith(".") for text in HELP.values())
