"""`tailrace token`: tokens of programs for `/api/v1` and the HTTP endpoints."""

# ruff: noqa: PLC0415 - heavy modules are loaded when a command runs, not for --help

from __future__ import annotations

import getpass
import re
from datetime import timedelta
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailrace.cli import options

token_app = typer.Typer(
    name="token", no_args_is_help=True, help="Tokens of programs for the HTTP endpoints."
)
_DURATION = re.compile(r"(\d{1,5})([hdw])")
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}


@token_app.command()
def create(
    *,
    scope: Annotated[
        Literal["read", "operate"],
        typer.Option(help="read: everything that a viewer sees. operate: change the system, too."),
    ] = "read",
    expires: Annotated[
        str, typer.Option(metavar="DURATION", help="How long it is valid: 12h, 30d, 52w.")
    ] = "30d",
    note: Annotated[str, typer.Option(help="What it is for; shown in lists.")] = "",
    config: options.ConfigFile = None,
) -> None:
    """Create a token and print it. It is shown once: the data folder has only its hash.

    \b
    Example:
      TOKEN=$(tailrace token create --scope read --expires 30d --note prometheus)
      curl -H "Authorization: Bearer $TOKEN" localhost:9090/api/v1/overview
    """
    from tailrace.access.tokens import Tokens
    from tailrace.errors import ConfigError

    match = _DURATION.fullmatch(expires)
    if match is None or not int(match[1]):
        raise ConfigError(f"--expires must be a duration such as 12h, 30d or 52w, got {expires!r}")
    lifetime = timedelta(**{_UNITS[match[2]]: int(match[1])})
    tokens = Tokens(options.settings(config).data)
    typer.echo(tokens.create(scope, lifetime, user=getpass.getuser(), note=note))
    typer.echo("Store it now: it is not shown again.", err=True)


@token_app.command()
def ls(*, config: options.ConfigFile = None) -> None:
    """List the tokens with their scopes, without their secrets."""
    from tailrace.access.tokens import Tokens

    table = Table(box=None, pad_edge=False)
    for heading in ("token", "scope", "expires", "created by", "note"):
        table.add_column(heading, no_wrap=True)
    for each in Tokens(options.settings(config).data).all():
        expires = f"{each.expires_at:%Y-%m-%d %H:%M}" + (" (expired)" if each.expired else "")
        table.add_row(each.id, each.scope, expires, Text(each.created_by), Text(each.note))
    Console(highlight=False, soft_wrap=True).print(table)


@token_app.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="ID", help="Id, as `tailrace token ls` lists it.")],
    *,
    config: options.ConfigFile = None,
) -> None:
    """Revoke a token. Requests with it are refused from now on."""
    from tailrace.access.tokens import Tokens

    Tokens(options.settings(config).data).revoke(name, user=getpass.getuser())
    typer.echo(f"{name}: revoked")
