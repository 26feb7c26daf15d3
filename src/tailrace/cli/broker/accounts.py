"""`tailrace broker user` and `tailrace broker acl`: who may log in, and what they may do then."""

# ruff: noqa: PLC0415 - psycopg is loaded when the command runs, not for --help

from __future__ import annotations

import asyncio
import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli import options

if TYPE_CHECKING:
    from tailrace.broker.auth.accounts import Rule

user_app = typer.Typer(name="user", no_args_is_help=True, help="Who may log in to the broker.")
acl_app = typer.Typer(name="acl", no_args_is_help=True, help="What users of the broker may do.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The user.", show_default=False)]
User = Annotated[str, typer.Option("--user", metavar="NAME", help="Whose rule it is.")]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="PATTERN", help="A topic, a beginning such as orders*, or *."),
]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="PATTERN", help="A consumer group, a beginning, or *."),
]
Cluster = Annotated[bool, typer.Option("--cluster", help="What is about all topics and groups.")]


def _dsn(context: typer.Context, config: Path | None, dsn: str | None) -> str:
    """From the options here, or from those given to `tailrace broker`."""
    chosen = context.obj or options.Chosen()
    found = options.settings(config or chosen.config, dsn=dsn or chosen.dsn)
    return found.source.dsn.get_secret_value()


@user_app.command("add")
def add_user(
    context: typer.Context,
    name: Name,
    *,
    superuser: Annotated[
        bool | None,
        typer.Option(
            "--superuser/--no-superuser",
            help="May do everything, without rules.",
            show_default=False,
        ),
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Its first line is the password. Without it: asked for, or read."
        ),
    ] = None,
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
) -> None:
    """Add a user, or change the password of one.

    The password is asked for on a terminal, and read from standard input elsewhere. It is not kept:
    the database has keys made of it, for SCRAM-SHA-256 and SCRAM-SHA-512.

    From the first user on everybody has to log in, and may do what rules allow: see
    `tailrace broker acl add`. A running broker heeds it at once.

    \b
    Examples:
      tailrace broker user add admin --superuser
      tailrace broker user add shop --password-file /run/secrets/shop
      pwgen 24 1 | tailrace broker user add shop
    """
    from tailrace.broker.auth import accounts

    password = _password(password_file)
    found = _dsn(context, config, dsn)
    new = asyncio.run(accounts.add_user(found, name, password, superuser=superuser))
    typer.echo(f"user {name}: {'added' if new else 'password changed'}")


def _password(file: Path | None) -> str:
    from tailrace.errors import ConfigError

    if file is not None:
        try:
            lines = file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}") from error
        return lines[0] if lines else ""
    if sys.stdin.isatty():
        asked: str = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
        return asked
    return sys.stdin.readline().rstrip("\r\n")


@user_app.command("remove")
def remove_user(
    context: typer.Context,
    name: Name,
    *,
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
) -> None:
    """Remove a user, with all rules. A running broker closes the user's connections.

    \b
    Example:
      tailrace broker user remove shop
    """
    from tailrace.broker.auth import accounts

    left = asyncio.run(accounts.remove_user(_dsn(context, config, dsn), name))
    typer.echo(f"user {name}: removed")
    if not left:
        typer.echo("There are no users left: on loopback nobody has to log in any more.", err=True)


@user_app.command("list")
def list_users(
    context: typer.Context, *, config: options.ConfigFile = None, dsn: options.Dsn = None
) -> None:
    """List the users: their names, and how many rules they have.

    \b
    Example:
      tailrace broker user list
    """
    from tailrace.broker.auth import accounts

    for name, superuser, rules in asyncio.run(accounts.users(_dsn(context, config, dsn))):
        typer.echo(f"{name}\t{'superuser' if superuser else f'{rules} rules'}")


@acl_app.command("add")
def add_rule(
    context: typer.Context,
    *,
    user: User,
    allow: Annotated[
        str, typer.Option("--allow", metavar="OPERATION,...", help="What it allows: read,write.")
    ],
    topic: Topics = None,
    group: Groups = None,
    cluster: Cluster = False,
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
) -> None:
    """Allow a user to do something. What no rule allows is forbidden.

    \b
    Operations:
      topics    read write create delete alter describe describe_configs alter_configs all
      groups    read describe delete all
      cluster   create describe describe_configs alter_configs idempotent_write all

    read, write, delete and alter imply describe. Who may write to a topic may do so idempotently. A
    consumer needs read on the topic and on its group. Operations that a resource does not have are
    left out where another one given here has them: `--topic t --group g --allow read,write`.

    \b
    Examples:
      tailrace broker acl add --user shop --topic 'orders*' --allow write
      tailrace broker acl add --user billing --topic orders --group 'billing*' --allow read
      tailrace broker acl add --user admin --cluster --allow create
    """
    from tailrace.broker.auth import accounts

    rules = _rules(user, topic, group, cluster=cluster, operations=allow)
    asyncio.run(accounts.allow(_dsn(context, config, dsn), rules))
    for rule in rules:
        typer.echo(_shown(rule))


@acl_app.command("remove")
def remove_rule(
    context: typer.Context,
    *,
    user: User,
    allow: Annotated[
        str,
        typer.Option(
            "--allow", metavar="OPERATION,...", help="Which operations. Without it: all of them."
        ),
    ] = "",
    topic: Topics = None,
    group: Groups = None,
    cluster: Cluster = False,
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
) -> None:
    """Remove what a user was allowed, by the very pattern it was given with.

    \b
    Examples:
      tailrace broker acl remove --user shop --topic 'orders*' --allow write
      tailrace broker acl remove --user shop --topic 'orders*'
    """
    from tailrace.broker.auth import accounts
    from tailrace.errors import ConfigError

    rules = _rules(user, topic, group, cluster=cluster, operations=allow)
    gone = asyncio.run(accounts.forbid(_dsn(context, config, dsn), rules))
    if not gone:
        raise ConfigError(
            "there is no such rule", hint=f"See: tailrace broker acl list --user {user}"
        )
    typer.echo(f"{gone} removed")


@acl_app.command("list")
def list_rules(
    context: typer.Context,
    *,
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="Whose.")] = None,
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
) -> None:
    """List what users are allowed.

    \b
    Example:
      tailrace broker acl list --user shop
    """
    from tailrace.broker.auth import accounts

    for rule in asyncio.run(accounts.rules(_dsn(context, config, dsn), user)):
        typer.echo(_shown(rule))


def _rules(
    user: str, topics: list[str] | None, groups: list[str] | None, *, cluster: bool, operations: str
) -> list[Rule]:
    from tailrace.broker.auth.access import OPERATIONS, Operation, Resource
    from tailrace.broker.auth.accounts import Rule
    from tailrace.errors import ConfigError

    wanted = {
        Resource.TOPIC: topics or [],
        Resource.GROUP: groups or [],
        Resource.CLUSTER: ["*"] if cluster else [],
    }
    named = [resource for resource, patterns in wanted.items() if patterns]
    if not named:
        raise ConfigError("a rule is about something", hint="Give --topic, --group or --cluster.")
    try:
        given = [Operation(each.strip()) for each in operations.split(",") if each.strip()]
    except ValueError as error:
        known = ", ".join(sorted(Operation))
        raise ConfigError(str(error), hint=f"Operations are {known}.") from error
    for operation in given:
        if not any(operation in OPERATIONS[resource] for resource in named):
            raise ConfigError(
                f"no {' or '.join(named)} has an operation {operation}",
                hint="See: tailrace broker acl add --help",
            )
    return [
        Rule(
            user=user,
            resource=resource,
            pattern=pattern,
            operations=tuple(each for each in given if each in OPERATIONS[resource]),
        )
        for resource in named
        for pattern in wanted[resource]
    ]


def _shown(rule: Rule) -> str:
    name = "" if rule.resource == "cluster" else f" {rule.pattern}"
    return f"{rule.user}\t{rule.resource}{name}\t{','.join(rule.operations)}"
