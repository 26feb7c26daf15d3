"""`docs/security.md`: every statement has a number and names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
ROW = re.compile(r'^\| <a id="(?P<id>[A-Z]\d+)"></a>(?P=id) \| (?P<text>.+) \| (?P<tests>.*) \|$')
LINK = re.compile(r"\[`(\w+)`\]\(\.\./(tests/[\w/]+\.py)\)")
OTHER_ROWS = ("| | statement | test |", "|---|---|---|")


def rows() -> list[str]:
    lines = PAGE.read_text().splitlines()
    return [line for line in lines if line.startswith("|") and line not in OTHER_ROWS]


STATEMENTS = [ROW.match(row) for row in rows()]


@cache
def functions(path: Path) -> frozenset[str]:
    """The tests of a file."""
    found = ast.walk(ast.parse(path.read_text()))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(each.name for each in found if isinstance(each, kinds))


def test_every_row_is_a_statement() -> None:
    assert [row for row, statement in zip(rows(), STATEMENTS, strict=True) if not statement] == []
    assert len(STATEMENTS) > 40


def test_statements_are_numbered() -> None:
    found = [statement["id"] for statement in STATEMENTS if statement]
    counts = {letter: sum(name[0] == letter for name in found) for letter in "LADWS"}
    expected = [f"{letter}{n}" for letter, count in counts.items() for n in range(1, count + 1)]
    assert found == expected


@pytest.mark.parametrize("statement", [each for each in STATEMENTS if each], ids=lambda m: m["id"])
def test_a_statement_names_existing_tests(statement: re.Match[str]) -> None:
    links = LINK.findall(statement["tests"])
    assert links
    assert ", ".join(f"[`{name}`](../{path})" for name, path in links) == statement["tests"]
    for name, path in links:
        assert name.startswith("test_")
        assert name in functions(ROOT / path), f"{path}::{name}"


def test_references_to_statements_exist() -> None:
    names = {statement["id"] for statement in STATEMENTS if statement}
    assert set(re.findall(r"\(#([A-Z]\d+)\)", PAGE.read_text())) <= names
