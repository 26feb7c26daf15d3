"""The command line: errors, exit codes, and the source of the settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from tailrace import cli, private
from tailrace.cli import options
from tailrace.errors import ConfigError, GapError
from tests.command import call


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


@pytest.mark.parametrize(
    "words",
    [
        ("run", "tailrace.yml"),
        ("capture",),
        ("pipelines",),
        ("serve",),
        ("reset", "shop", "--from", "now"),
        ("bridge", "--pub", "shop"),
        ("creek",),
        ("shadow", "--to", "kafka:9092"),
    ],
)
def test_commands_that_write_rows_write_them_for_their_owner(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Each of them restricts new files before it does anything else."""

    class RestrictedError(Exception):
        pass

    def restrict() -> None:
        raise RestrictedError

    monkeypatch.setattr(private, "restrict_new_files", restrict)
    with pytest.raises(RestrictedError):
        call(*words)


@pytest.mark.parametrize(
    ("command", "option", "variable"),
    [
        ("run", "--dsn", "TAILRACE_DSN"),
        ("capture", "--dsn", "TAILRACE_DSN"),
        ("init", "--dsn", "TAILRACE_DSN"),
        ("doctor", "--dsn", "TAILRACE_DSN"),
        ("broker", "--dsn", "TAILRACE_DSN"),
        ("shadow", "--dsn", "TAILRACE_DSN"),
        ("creek", "--pg-uri", "PG_URI"),
        ("creek", "--nats-uri", "NATS_URI"),
        ("mirror", "--from", "TAILRACE_NATS"),
        ("mirror", "--to", "TAILRACE_MIRROR"),
    ],
)
def test_an_option_that_may_have_a_password_has_a_variable(
    command: str, option: str, variable: str
) -> None:
    """Other users of the machine can read a command line, and not the environment."""
    found_command = _group().get_command(None, command)  # type: ignore[arg-type]
    assert found_command is not None
    variables = {name: each.envvar for each in found_command.params for name in each.opts}
    found = variables[option]
    assert variable in ([found] if isinstance(found, str) else found or ())


def _group() -> TyperGroup:
    group = typer.main.get_command(cli.app)
    assert isinstance(group, TyperGroup)
    return group


def test_every_command_has_a_help_text() -> None:
    group = _group()
    for name in group.list_commands(None):  # type: ignore[arg-type]
        command = group.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        assert command.name == name
        assert command.get_short_help_str()
        assert command.hidden == (name in {"serve", "replicate"})


def test_a_wrong_name_gets_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["tailrace", "mirrr"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "Did you mean 'mirror'?" in capsys.readouterr().err


def test_a_command_imports_what_it_needs() -> None:
    """The settings of the pipelines take a quarter of a second."""
    program = (
        "import sys, contextlib; from tailrace.cli import main; sys.argv[1:] = ['mirror', '-h']\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "print(*(name for name in sys.modules if name.startswith('tailrace.')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    modules = done.stdout.decode().splitlines()[-1].split()
    assert "tailrace.cli.mirror.command" in modules
    assert {"tailrace.config", "tailrace.cli.run", "tailrace.broker"}.isdisjoint(modules)
