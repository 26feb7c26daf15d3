"""Checks as functions over facts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from tailrace.finding import Finding, Severity, check, error, info, warning

if TYPE_CHECKING:
    from collections.abc import Iterator


@check("even", "the number is even", needs=("number",))
def even(facts: Any) -> Iterator[Finding]:
    if facts.number % 2:
        yield error("the number is odd", "Add 1.", str(facts.number))


def run(number: int | None) -> list[Finding]:
    return even.run(cast("Any", SimpleNamespace(number=number)))


def test_findings_get_the_name_of_their_check() -> None:
    assert run(3) == [
        Finding(
            check="even", severity=Severity.ERROR, finding="the number is odd", fix="Add 1.",
            subject="3",
        )
    ]  # fmt: skip


def test_a_check_without_findings_has_passed() -> None:
    assert run(4) == [Finding(check="even", severity=Severity.OK, finding="the number is even")]


def test_a_check_without_its_facts_does_not_run() -> None:
    assert run(None) == []


def test_severities() -> None:
    made = [error("a", "b"), warning("a", "b"), info("a")]
    assert [finding.severity.value for finding in made] == ["error", "warning", "info"]
