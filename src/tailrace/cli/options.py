"""Options that several commands share, and the settings that result from them.

Help texts are the descriptions in `tailrace.config`, so the file and the command line agree.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer
from pydantic import ValidationError

from tailrace.config import Config, Http, Log, Source, load
from tailrace.errors import ConfigError
from tailrace.settings import error_text

if TYPE_CHECKING:
    from pydantic import BaseModel

DEFAULT_FILE = Path("tailrace.yml")


def _help(model: type[BaseModel], key: str) -> str:
    return model.model_fields[key].description or ""


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="TAILRACE_CONFIG",
        help="Settings file. Default: tailrace.yml in the current folder, if it exists.",
    ),
]
Dsn = Annotated[str | None, typer.Option("--dsn", envvar="TAILRACE_DSN", help=_help(Source, "dsn"))]
Slot = Annotated[
    str | None, typer.Option("--slot", envvar="TAILRACE_SLOT", help=_help(Source, "slot"))
]
Publication = Annotated[
    str | None,
    typer.Option("--publication", envvar="TAILRACE_PUBLICATION", help=_help(Source, "publication")),
]
LogPath = Annotated[
    Path | None, typer.Option("--log", envvar="TAILRACE_LOG", help=_help(Log, "path"))
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File whose first line is the password. Default: a prompt, or standard input.",
    ),
]
Insecure = Annotated[
    bool | None,
    typer.Option(
        "--insecure/--no-insecure",
        envvar="TAILRACE_INSECURE",
        help=_help(Http, "insecure"),
        show_default=False,
    ),
]
LogFormat = Annotated[
    Literal["auto", "console", "json"],
    typer.Option(help="Format of log lines. auto: console on a terminal, json elsewhere."),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log debug events too.")]


class Chosen(NamedTuple):
    """Options of a command group, for its subcommands."""

    config: Path | None = None
    dsn: str | None = None


def settings(
    config: Path | None = None,
    *,
    dsn: str | None = None,
    slot: str | None = None,
    publication: str | None = None,
    log: Path | None = None,
    insecure: bool | None = None,
) -> Config:
    """The settings file, with options applied over it."""
    if config is None and DEFAULT_FILE.exists():
        config = DEFAULT_FILE
    source = {"dsn": dsn, "slot": slot, "publication": publication}
    overrides: dict[str, dict[str, object]] = {
        "source": {key: value for key, value in source.items() if value is not None},
        "log": {"path": log} if log is not None else {},
        "http": {"insecure": insecure} if insecure is not None else {},
    }
    return load(config, overrides)


def pipelines_run(config: Config) -> bool:
    """Whether pipelines run on the data folder."""
    from tailrace.run import status  # noqa: PLC0415 - loaded when a command runs, not for --help

    return status.pipelines_run(config.data)


def read_password(file: Path | None) -> str:
    """A password: the first line of a file, or from a prompt, or from standard input."""
    if file is not None:
        try:
            lines = file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {file}: {error}") from error
        return lines[0] if lines else ""
    if sys.stdin.isatty():
        password: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
        return password
    return sys.stdin.readline().rstrip("\r\n")


def check_section(model: type[BaseModel], values: dict[str, object]) -> None:
    """Raise ConfigError unless the values fit a section of the settings file."""
    try:
        model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ConfigError(error_text(first)) from None
