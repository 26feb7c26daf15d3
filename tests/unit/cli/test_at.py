"""The options for a system on another machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer.main

from tailrace.cli import app
from tailrace.cli.at import At
from tailrace.settings import Flag

if TYPE_CHECKING:
    from collections.abc import Iterator


def commands(command: Any) -> Iterator[Any]:
    yield command
    # A group imports its commands when they are asked for.
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from commands(command.get_command(None, name))


def test_variables_of_at_mean_nothing_to_a_server() -> None:
    """GIVEN the environment variables for --at WHEN all commands are searched for them THEN those
    without --at do not read them: `--insecure` of a server opens it to the network."""
    flags = [each for field in At.model_fields.values() for each in field.metadata]
    variables = {each.env for each in flags if isinstance(each, Flag) and each.env}
    assert len(variables) == 4
    for command in commands(typer.main.get_command(app)):
        read = {str(each.envvar) for each in command.params if getattr(each, "envvar", None)}
        if read & variables:
            assert "at" in {each.name for each in command.params}, command.name
