from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.errors import ConfigError
from tailrace.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

GROUP = "tailrace.test_things"


@pytest.fixture
def things() -> Registry[object]:
    return Registry(
        "thing", group=GROUP, built_in={"error": "tailrace.errors:ConfigError", "seven": 7}
    )


def install(folder: Path, entry_points: str) -> None:
    """What installing a package leaves behind: metadata beside the modules."""
    info = folder / "other_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{entry_points}\n")
    (folder / "other_package.py").write_text("THING = 'from another package'\n")


def test_built_in_things_are_found(things: Registry[object]) -> None:
    assert things.find("error") is ConfigError
    assert things.find("seven") == 7
    assert things.names() == ["error", "seven"]
    assert things.all() == [ConfigError, 7]


def test_an_unknown_name_names_the_nearest(things: Registry[object]) -> None:
    with pytest.raises(ConfigError, match=r"unknown thing .eror., did you mean error\?") as caught:
        things.find("eror")
    assert "error, seven" in caught.value.hint
    assert GROUP in caught.value.hint


def test_other_packages_register_theirs(
    things: Registry[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "other = other_package:THING")
    monkeypatch.syspath_prepend(tmp_path)
    assert things.find("other") == "from another package"
    assert things.names() == ["error", "seven", "other"]


def test_a_built_in_name_cannot_be_replaced(
    things: Registry[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "seven = other_package:THING")
    monkeypatch.syspath_prepend(tmp_path)
    assert things.find("seven") == 7
    assert things.names() == ["error", "seven"]


@pytest.mark.parametrize("target", ["missing_package:THING", "other_package:MISSING"])
def test_a_package_that_cannot_be_loaded_is_named(
    things: Registry[object], target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, f"other = {target}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=f"other cannot be loaded from {target}"):
        things.find("other")
