"""The command line: errors, exit codes, and the source of the settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from tailrace import cli
from tailrace.cli import options
from tailrace.errors import ConfigError, GapError


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def fails(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """Run `main` with one command that raises `error`; the exit code."""
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def command() -> None:
        raise error

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr("sys.argv", ["tailrace"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_an_error_prints_its_code_and_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fails(monkeypatch, GapError("[bold]a gap[/bold] :warning:", hint="do [this]")) == 10
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "GAP: [bold]a gap[/bold] :warning:\nhint: do [this]\n"


def test_an_error_without_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fails(monkeypatch, ConfigError("wrong")) == 2
    assert capsys.readouterr().err == "BAD_CONFIG: wrong\n"


def test_an_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fails(monkeypatch, KeyboardInterrupt()) == 130


def test_settings_are_read_from_the_current_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert options.settings().source.slot == "tailrace"
    Path("tailrace.yml").write_text("source:\n  slot: from_file\n  publication: p\n")
    config = options.settings(publication="given", log=Path("here"))
    assert config.source.slot == "from_file"
    assert config.source.publication == "given"
    assert config.log.path == Path("here")


def test_a_named_settings_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        options.settings(tmp_path / "gone.yml")
