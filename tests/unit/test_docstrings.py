"""The examples in docstrings are run, so that they stay true."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

import tailrace

MODULES = [
    module.name
    for module in pkgutil.walk_packages(tailrace.__path__, "tailrace.")
    if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [case for name in MODULES for case in finder.find(import_module(name))]
    assert sum(bool(case.examples) for case in found) >= 7
