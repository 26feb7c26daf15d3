from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import pytest
import typer
from pydantic import Field, SecretStr
from typer.testing import CliRunner

from tailrace.cli.model_options import with_options
from tailrace.errors import ConfigError
from tailrace.settings import Bytes, Flag, Section

if TYPE_CHECKING:
    from typer.testing import Result


class Server(Section):
    listen: Annotated[str, Flag(env="TEST_LISTEN", metavar="HOST:PORT")] = Field(
        default="127.0.0.1:80", pattern=":", description="Address to listen on."
    )
    port: int = Field(default=80, ge=0, le=65535, description="Port to listen on.")
    memory: Annotated[Bytes, Flag(name="--memory-bytes")] = Field(default=1024, ge=1)
    key: Path | None = Field(default=None)
    password: SecretStr = Field(default=SecretStr(""))
    create: bool = Field(default=True)
    insecure: Annotated[bool, Flag(switch=True)] = Field(default=False)
    mode: Literal["fast", "safe"] = Field(default="safe")
    table: tuple[str, ...] = Field(default=())


seen: list[tuple[Server, bool]] = []
app = typer.Typer()


@app.command()
@with_options(Server)
def serve(settings: Server, *, verbose: Annotated[bool, typer.Option("--verbose")] = False) -> None:
    """Serve."""
    seen.append((settings, verbose))


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, arguments, env=environment)


def test_defaults_are_those_of_the_model() -> None:
    assert run().exit_code == 0
    assert seen.pop() == (Server(), False)


def test_every_kind_of_field_is_an_option() -> None:
    given = "--port 3 --memory-bytes 7 --key /k --password p --no-create --insecure --mode fast"
    assert run(*given.split(), "--table", "a", "--table", "b", "--verbose").exit_code == 0
    settings, verbose = seen.pop()
    assert verbose
    assert settings == Server(
        port=3, memory=7, key=Path("/k"), password=SecretStr("p"), create=False, insecure=True,
        mode="fast", table=("a", "b"),
    )  # fmt: skip


def test_values_come_from_the_environment() -> None:
    assert run(TEST_LISTEN="0.0.0.0:1").exit_code == 0
    assert seen.pop()[0].listen == "0.0.0.0:1"


def test_limits_are_those_of_the_model() -> None:
    result = run("--port", "70000")
    assert result.exit_code == 2
    assert "--port" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--listen", "nowhere"), "--listen (TEST_LISTEN): String must match pattern ':'"),
        (("--memory-bytes", "x"), "--memory-bytes: "),
    ],
)
def test_an_error_of_the_model_names_the_option(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert message.split(" ", maxsplit=1)[0].rstrip(":") in (str(result.exception) + result.output)
    if isinstance(result.exception, ConfigError):
        assert str(result.exception).startswith(message)


@pytest.mark.parametrize("text", ["Address to listen on.", "HOST:PORT", "TEST_LISTEN", "127.0.0.1"])
def test_help_shows_the_description(text: str) -> None:
    assert text in CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
