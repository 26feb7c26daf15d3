"""`tailrace broker user` and `tailrace broker acl`: users of the broker and their rules."""

# ruff: noqa: PLC0415 - psycopg is loaded when the command runs, not for --help

from __future__ import annotations

import asyncio
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli import options
from tailrace.cli.broker.database import chosen

if TYPE_CHECKING:
    from tailrace.broker.auth.accounts import Rule

user_app = typer.Typer(name="user", no_args_is_help=True, help="Manage users of the broker.")
acl_app = typer.Typer(
    name="acl", no_args_is_help=True, help="Manage what users of the broker may do."
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.", show_default=False)]
User = Annotated[str, typer.Option("--user", metavar="NAME", help="User that the rule applies to.")]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="PATTERN", help="Topic, prefix such as orders*, or *."),
]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="PATTERN", help="Consumer group, prefix, or *."),
]
Cluster = Annotated[
    bool, typer.Option("--cluster", help="The cluster: operations on all topics and groups.")
]


def _dsn(context: typer.Context, config: Path | None, dsn: str | None) -> str:
    """The connection string from the options here, or from those of `tailrace broker`."""
    return chosen(context, config, dsn).source.dsn.get_secret_value()


@user_app.command("add")
def add_user(
    context: typer.Context,
    name: Name,
    *,
    superuser: Annotated[
        bool | None,
        typer.Option(
            "--superuser/--no-superuser",
            help="May do everything; rules do not apply.",
            show_default=False,
        ),
    ] = None,
    password_file: options.PasswordFile = None,
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
) -> None:
    """Add a user, or change the password of an existing one.

    The command prompts for the password on a terminal, and otherwise reads it from standard input.
    The password is not stored: the database has keys derived from it, for SCRAM-SHA-256 and
    SCRAM-SHA-512.

    From the first user on every client must log in, and may do what rules allow: see
    `tailrace broker acl add`. A running broker applies the change at once.

    \b
    Examples:
      tailrace broker user add admin --superuser
      tailrace broker user add shop --password-file /run/secrets/shop
      pwgen 24 1 | tailrace broker user add shop
    """
    from tailrace.broker.auth import accounts

    password = options.read_password(password_file)
    source = _dsn(context, config, dsn)
    new = asyncio.run(accounts.add_user(source, name, password, superuser=superuser))
    typer.echo(f"user {name}: {'added' if new else 'password changed'}")


@user_app.command("remove")
def remove_user(
    context: typer.Context,
    name: Name,
    *,
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
) -> None:
    """Remove a user and all its rules. A running broker closes the user's connections.

    \b
    Example:
      tailrace broker user remove shop
    """
    from tailrace.broker.auth import accounts

    remaining = asyncio.run(accounts.remove_user(_dsn(context, config, dsn), name))
    typer.echo(f"user {name}: removed")
    if not remaining:
        typer.echo("No users remain: clients on loopback need no login any more.", err=True)


@user_app.command("list")
def list_users(
    context: typer.Context, *, config: options.ConfigFile = None, dsn: options.Dsn = None
) -> None:
    """List users with the number of their rules.

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
        str,
        typer.Option(
            "--allow", metavar="OPERATION,...", help="Operations to allow, such as read,write."
        ),
    ],
    topic: Topics = None,
    group: Groups = None,
    cluster: Cluster = False,
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
) -> None:
    """Allow a user operations on topics, groups or the cluster. The default is to deny.

    \b
    Operations:
      topics    read write create delete alter describe describe_configs alter_configs all
      groups    read describe delete all
      cluster   create describe describe_configs alter_configs idempotent_write all

    read, write, delete and alter imply describe. write on a topic implies idempotent writes. A
    consumer needs read on the topic and on its group. With several resources, each one gets the
    operations that it has: `--topic t --group g --allow read,write` allows the group read only.

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
        typer.echo(_line(rule))


@acl_app.command("remove")
def remove_rule(
    context: typer.Context,
    *,
    user: User,
    allow: Annotated[
        str,
        typer.Option(
            "--allow", metavar="OPERATION,...", help="Operations to remove. Default: all."
        ),
    ] = "",
    topic: Topics = None,
    group: Groups = None,
    cluster: Cluster = False,
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
) -> None:
    """Remove rules of a user. The pattern must be the one that the rule was added with.

    \b
    Examples:
      tailrace broker acl remove --user shop --topic 'orders*' --allow write
      tailrace broker acl remove --user shop --topic 'orders*'
    """
    from tailrace.broker.auth import accounts
    from tailrace.errors import ConfigError

    rules = _rules(user, topic, group, cluster=cluster, operations=allow)
    removed = asyncio.run(accounts.revoke(_dsn(context, config, dsn), rules))
    if not removed:
        raise ConfigError(
            f"user {user} has no such rule",
            hint=f"List rules: tailrace broker acl list --user {user}",
        )
    typer.echo(f"{removed} removed")


@acl_app.command("list")
def list_rules(
    context: typer.Context,
    *,
    user: Annotated[
        str | None, typer.Option("--user", metavar="NAME", help="Only rules of this user.")
    ] = None,
    config: options.ConfigFile = None,
    dsn: options.Dsn = None,
) -> None:
    """List the rules of users.

    \b
    Example:
      tailrace broker acl list --user shop
    """
    from tailrace.broker.auth import accounts

    for rule in asyncio.run(accounts.rules(_dsn(context, config, dsn), user)):
        typer.echo(_line(rule))


def _rules(
    user: str, topics: list[str] | None, groups: list[str] | None, *, cluster: bool, operations: str
) -> list[Rule]:
    from tailrace.broker.auth.access import OPERATIONS, Operation, Resource
    from tailrace.broker.auth.accounts import Rule
    from tailrace.errors import ConfigError

    patterns = {
        Resource.TOPIC: topics or [],
        Resource.GROUP: groups or [],
        Resource.CLUSTER: ["*"] if cluster else [],
    }
    named = [resource for resource, given in patterns.items() if given]
    if not named:
        raise ConfigError("the rule has no resource", hint="Add --topic, --group or --cluster.")
    try:
        allowed = [Operation(one.strip()) for one in operations.split(",") if one.strip()]
    except ValueError as error:
        known = ", ".join(sorted(Operation))
        raise ConfigError(f"--allow: {error}", hint=f"Use some of: {known}") from error
    for operation in allowed:
        if not any(operation in OPERATIONS[resource] for resource in named):
            raise ConfigError(
                f"operation {operation} does not exist for a {' or '.join(named)}",
                hint="List operations: tailrace broker acl add --help",
            )
    return [
        Rule(
            user=user,
            resource=resource,
            pattern=pattern,
            operations=tuple(one for one in allowed if one in OPERATIONS[resource]),
        )
        for resource in named
        for pattern in patterns[resource]
    ]


def _line(rule: Rule) -> str:
    name = "" if rule.resource == "cluster" else f" {rule.pattern}"
    return f"{rule.user}\t{rule.resource}{name}\t{','.join(rule.operations)}"
