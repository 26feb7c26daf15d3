"""Which patterns of regular expressions and of LIKE are allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.pipeline.expressions import patterns
from tailrace.pipeline.expressions.patterns import like_problem, problem

ALLOWED = [
    *("", "^x", "a|b", "(?i)paid|open", "[a-z]+", r"[\]\[^-]+", r"^\d{4}-\d{2}-\d{2}$", ".*x.*"),
    *("(ab)+", "(a+)?", "(a|b)?", r"(\d{3}-){2}", "(a+)++", "(a|b)*+", r"(\d{1,3}\.){3}+\d{1,3}"),
    *("(?:ab)*", "(?<year>[0-9]+)-", "(?!test)", "(?<=a)b", "(?i:a)+", "(?s-i)a", r"\p{Lu}\w*"),
    r"^[\w.+-]+@[\w-]+(\.[\w-]+)++$",
    ".*+" * 20,
]


@pytest.mark.parametrize("pattern", ALLOWED)
def test_patterns_with_one_way_to_match_are_allowed(pattern: str) -> None:
    assert problem(pattern) == ""


@pytest.mark.parametrize(
    "pattern",
    [
        *("(a+)+", "(a*)*", "(a+)*b", "(a|a)*", "(a|aa)+", "(.|\\n)*", "(a?){9}", "(a+){2,}"),
        *("((a+)b)+", "((ab)+c)*", "(?:a+)+?", "(?i:a+)*", "(?>a+)+", "([a-z]+)*", r"(\(+)+"),
        *("(a{1,9})+", "x(y(z*)){3}", "(a++)+"),
    ],
)
def test_a_choice_in_a_repeated_group_is_refused(pattern: str) -> None:
    assert "repeats a group" in problem(pattern)
    assert "without backtracking" in problem(pattern)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a" * 1001, "at most 1,000 characters"),
        (".*" * 6, "at most 5 repetitions"),
        ("a{1001}", "at most 1,000 times"),
        ("a{1,99999999999}", "at most 1,000 times"),
        (r"(a)\1", r"\1 is not supported"),
        (r"(?<x>a)\k<x>", r"\k is not supported"),
        (r"\Q(a+)+\E", r"\Q is not supported"),
        (r"\c(", r"\c is not supported"),
        ("(?x)a", "( is not supported"),
        ("[a[b]]", "[ is not supported"),
        ("[]a]", "[ is not supported"),
        ("[^]]", "[ is not supported"),
        ("[a", "[ is not supported"),
        ("a\\", "\\ is not supported"),
    ],
)
def test_what_cannot_be_read_without_doubt_is_refused(pattern: str, reason: str) -> None:
    assert reason in problem(pattern)


@given(st.text("ab()[]|*+?{}1,\\Q^-:<>=!iE", max_size=40))
def test_a_repeated_group_with_a_choice_is_found_after_any_pattern(prefix: str) -> None:
    """A prefix may hide the group only if the prefix is invalid or is refused itself."""
    if prefix.count("(") == prefix.count(")") and not problem(prefix):
        assert problem(prefix + "(a+)+")


def test_patterns_of_like_have_few_wildcards() -> None:
    assert like_problem("%a%b%c%d%") == ""
    assert like_problem("%%%%%%a____") == ""
    assert "at most 5 %" in like_problem("%a%b%c%d%e%")
    assert "at most 1,000 characters" in like_problem("a" * 1001)


def test_the_limits_are_those_of_the_reference() -> None:
    assert (patterns.MAX_CHARACTERS, patterns.MAX_REPETITIONS, patterns.MAX_COUNT) == (
        1000,
        5,
        1000,
    )
