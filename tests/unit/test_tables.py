"""Patterns of tables and prefixes."""

from __future__ import annotations

import pytest

from tailrace.errors import ConfigError
from tailrace.tables import Prefixes, Tables


@pytest.mark.parametrize(
    ("patterns", "table", "selected"),
    [
        ((), ("public", "orders"), True),
        (("*",), ("sales", "orders"), True),
        (("orders",), ("public", "orders"), True),
        (("orders",), ("sales", "orders"), False),
        (("sales.*",), ("sales", "orders"), True),
        (("*.order?",), ("sales", "orders"), True),
        (("*.order?",), ("sales", "order"), False),
        (("public.*", "!public.tmp_*"), ("public", "tmp_1"), False),
        (("!public.tmp_*", "public.*"), ("public", "tmp_1"), True),
        (("!public.tmp_*",), ("public", "orders"), True),
        (('"a.b"."c*"',), ("a.b", "c*"), True),
        (('"a.b"."c*"',), ("a.b", "cd"), False),
        (('"say ""hi"""',), ("public", 'say "hi"'), True),
        (("a.b",), ("a\0b", ""), False),
    ],
)
def test_the_last_matching_pattern_decides(
    patterns: tuple[str, ...], table: tuple[str, str], selected: bool
) -> None:
    assert Tables(patterns).match(*table) is selected


def test_options_separate_patterns_by_commas() -> None:
    assert Tables.parse(' orders, "a,b".c ,') == Tables(("orders", '"a,b".c'))


@pytest.mark.parametrize("pattern", ["", ".", "a.", ".b", "a.b.c", "!"])
def test_invalid_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="invalid table pattern"):
        Tables((pattern,))


@pytest.mark.parametrize(
    ("patterns", "prefix", "selected"),
    [
        ((), "outbox", False),
        (("*",), "", True),
        (("outbox.*",), "outbox.orders", True),
        (("outbox.*",), "outbox", False),
        (('"a*"',), "a*", True),
        (('"a*"',), "ab", False),
    ],
)
def test_prefixes(patterns: tuple[str, ...], prefix: str, selected: bool) -> None:
    assert Prefixes(patterns)(prefix) is selected


@pytest.mark.parametrize("pattern", ["*", "tailrace", "tail*", "tailrac?"])
def test_messages_of_the_watchdog_are_never_selected(pattern: str) -> None:
    selected = Prefixes((pattern,))
    assert not selected("tailrace")
    assert Prefixes(("tailrace.*",))("tailrace.heartbeat")
