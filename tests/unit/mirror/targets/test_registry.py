"""Addresses of targets, and targets of other packages."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from tailrace.client.names import Table
from tailrace.errors import ConfigError
from tailrace.mirror import TargetType, target_of
from tailrace.mirror.targets import registry
from tailrace.mirror.targets.registry import register


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrations of a test end with it."""
    monkeypatch.setattr(registry, "_TARGETS", dict(registry._TARGETS))


class Recorder:
    """Stands for the target of another package."""

    def __init__(self, url: str, table: Table) -> None:
        self.url, self.table = url, table


FAKE = TargetType(schemes=("fake", "fakes"), example="fake://host", open=Recorder)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("sqlite:///x.db", "Sqlite"),
        ("SQLITE:///x.db", "Sqlite"),
        ("duckdb:///x.db", "Duckdb"),
        ("postgresql://host/db", "Postgresql"),
        ("postgres://host/db", "Postgresql"),
    ],
)
def test_scheme_selects_the_target(url: str, kind: str) -> None:
    assert type(target_of(url, "users")).__name__ == kind


@pytest.mark.parametrize("url", ["", "local.db", "mysql://u:hunter2@h/d", "sqlite:x.db"])
def test_unknown_address_is_refused_with_examples_and_without_the_address(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        target_of(url, "users")
    assert "hunter2" not in str(caught.value) + caught.value.hint
    for example in ("sqlite:///local.db", "duckdb:///local.db", "postgresql://"):
        assert caught.value.hint.count(example) == 1


@pytest.mark.parametrize("url", ["sqlite://local.db", "duckdb:///"])
def test_address_without_a_file_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="must have a file path") as caught:
        target_of(url, "users")
    assert "Three slashes" in caught.value.hint


def test_registered_target_is_opened_with_the_address_and_the_table() -> None:
    register(FAKE)
    target: Any = target_of("fakes://host/x", "sales.users")
    assert isinstance(target, Recorder)
    assert (target.url, target.table) == ("fakes://host/x", Table("sales", "users"))


def test_entry_point_adds_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups: list[dict[str, Any]] = []
    module = type(sys)("fake_package")
    module.TARGET = FAKE  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_package", module)
    entry_point = EntryPoint(name="fake", value="fake_package:TARGET", group=registry.GROUP)

    def entry_points(**parameters: Any) -> EntryPoints:
        lookups.append(parameters)
        return EntryPoints([entry_point]).select(**parameters)

    monkeypatch.setattr(registry, "entry_points", entry_points)
    target_of("sqlite:///x.db", "users")
    assert lookups == []
    assert isinstance(target_of("fake://host", "users"), Recorder)
    assert isinstance(target_of("fake://host", "users"), Recorder)
    assert lookups == [{"group": "tailrace.mirror_targets", "name": "fake"}]


def test_entry_point_that_is_not_a_target_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("fake_package")
    module.TARGET = "text"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_package", module)
    entry_point = EntryPoint(name="fake", value="fake_package:TARGET", group=registry.GROUP)
    monkeypatch.setattr(
        registry,
        "entry_points",
        lambda **query: EntryPoints([entry_point]).select(**query),
    )
    with pytest.raises(ConfigError, match="must be a TargetType, got str"):
        target_of("fake://host", "users")


def test_missing_library_names_the_extra_to_install() -> None:
    def open_target(_url: str, _table: Table) -> Any:
        raise ModuleNotFoundError("No module named 'fakelib'", name="fakelib")

    register(TargetType(schemes=("fake",), example="", open=open_target, needs="tailrace[fake]"))
    with pytest.raises(ConfigError, match="fakelib") as caught:
        target_of("fake://host", "users")
    assert caught.value.hint == "pip install 'tailrace[fake]'"
    register(TargetType(schemes=("fake",), example="", open=open_target))
    with pytest.raises(ModuleNotFoundError):
        target_of("fake://host", "users")
