"""The options of a JVM that uses the archive of Spark's classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.pipeline import archive

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_without_an_archive_options_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert archive.add_to("-Xmx1g") == "-Xmx1g"


def test_an_archive_is_named_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    archive._file().parent.mkdir()
    archive._file().touch()
    options = archive.add_to("-Xmx1g")
    assert options.startswith(f'-Xmx1g "-XX:SharedArchiveFile={tmp_path}/tailrace/spark-')
    assert archive.add_to(options) == options


def test_another_java_has_another_archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("one", "two"):
        java = tmp_path / name / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "one"))
    first = archive._file()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "two"))
    assert archive._file() != first
