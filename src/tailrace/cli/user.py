"""`tailrace user`: users of the console, for the settings file."""

# ruff: noqa: PLC0415 - heavy modules are loaded when a command runs, not for --help

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tailrace.cli import options

user_app = typer.Typer(
    name="user", no_args_is_help=True, help="Users of the console and of the HTTP endpoints."
)
_MIN_CHARACTERS = 10


@user_app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")],
    *,
    role: Annotated[
        Literal["viewer", "operator"],
        typer.Option(help="viewer: read everything. operator: change the running system, too."),
    ] = "viewer",
    password_file: options.PasswordFile = None,
) -> None:
    """Print the lines that add a user to the settings file: name, role and a hash of the password.

    The command prompts for the password on a terminal, and otherwise reads it from standard input.
    Nothing is stored. Change the settings file, then run `tailrace apply`.

    \b
    Examples:
      tailrace user add ann --role operator
      pwgen 24 1 | tailrace user add grafana >> users.yml
    """
    from tailrace.access import password
    from tailrace.config import Http
    from tailrace.errors import ConfigError

    chosen = options.read_password(password_file)
    if len(chosen) < _MIN_CHARACTERS:
        raise ConfigError(f"a password must have at least {_MIN_CHARACTERS} characters")
    user = {"role": role, "password": password.hashed(chosen)}
    options.check_section(Http, {"users": {name: user}})
    typer.echo("http:\n  users:")
    typer.echo(f"    {name}: {{role: {role}, password: '{user['password']}'}}")


@user_app.command()
def ls(*, config: options.ConfigFile = None) -> None:
    """List the users of the settings file."""
    for name, user in options.settings(config).http.users.items():
        typer.echo(f"{name}  {user.role}")
