"""The command line's frame: errors, exit codes, and where settings come from."""

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


def test_our_errors_are_a_code_a_line_and_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fails(monkeypatch, GapError("[bold]a gap[/bold] :warning:", hint="do [this]")) == 10
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "GAP: [bold]a gap[/bold] :warning:\nhint: do [this]\n"


def test_no_hint_no_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fails(monkeypatch, ConfigError("wrong")) == 2
    assert capsys.readouterr().err == "BAD_CONFIG: wrong\n"


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fails(monkeypatch, KeyboardInterrupt()) == 130


def test_settings_take_the_file_of_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert options.settings().source.slot == "tailrace"
    Path("tailrace.yml").write_text("source:\n  slot: from_file\n  publication: p\n")
    config = options.settings(publication="given", log=Path("here"))
    assert config.source.slot == "from_file"
    assert config.source.publication == "given"
    assert config.log.path == Path("here")


def test_a_file_that_is_asked_for_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        options.settings(tmp_path / "gone.yml")
