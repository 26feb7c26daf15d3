"""`tailrace alert`: test channels, and list alerts."""

# ruff: noqa: PLC0415 - loaded when a command runs, not for --help

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli import options

if TYPE_CHECKING:
    from tailrace.config import Config
    from tailrace.config.alerts import Channel

alert_app = typer.Typer(
    name="alert",
    no_args_is_help=True,
    help="Send a test alert; list alerts that fire and that have recovered.",
)


@alert_app.command("test")
def try_channel(
    channel: Annotated[
        str | None, typer.Argument(help="Name of a channel. Without it: all channels.")
    ] = None,
    *,
    config: options.ConfigFile = None,
) -> None:
    """Send a test message, and report the result.

    The message is sent once, without a delay, for any `severity` of the channel. The watchdog does
    not need to run.

    \b
    Exit codes:
      0   every channel has accepted it
      19  ALERT_UNDELIVERED: at least one has not

    \b
    Examples:
      tailrace alert test
      tailrace alert test pager
    """
    from tailrace.errors import AlertUndeliveredError

    settings = options.settings(config)
    failed = []
    for name, each in _channels(settings, channel).items():
        reason = _try(settings, name, each)
        typer.echo(f"{name}: {reason or 'accepted'}")
        if reason:
            failed.append(name)
    if failed:
        raise AlertUndeliveredError(f"not delivered: {', '.join(failed)}")


def _channels(settings: Config, name: str | None) -> dict[str, Channel]:
    from tailrace.errors import ConfigError

    known = settings.alerts.channels if settings.alerts else {}
    if not known:
        raise ConfigError(
            "the settings have no channels for alerts",
            hint="Add alerts.channels: see docs/guides/alerts.md.",
        )
    if name is None:
        return dict(known)
    if name not in known:
        raise ConfigError(f"there is no channel {name!r}; channels: {', '.join(known)}")
    return {name: known[name]}


def _try(settings: Config, name: str, channel: Channel) -> str:
    """Send a test message; why it failed, or nothing."""
    import uuid
    from datetime import UTC, datetime

    from tailrace.errors import AlertUndeliveredError
    from tailrace.replica.greeting import node_name
    from tailrace.watch.channels import send
    from tailrace.watch.message import trial

    message = trial(
        name,
        id=uuid.uuid4().hex,
        at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        source=settings.source.slot,
        host=node_name(settings.replication),
    )
    try:
        return send(channel, message)
    except AlertUndeliveredError as error:
        return str(error)


@alert_app.command("ls")
def ls(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="Recovered alerts to show.")] = 20,
    config: options.ConfigFile = None,
) -> None:
    """List the alerts that fire, the last ones that have recovered, and what is not delivered.

    \b
    Example:
      tailrace alert ls
    """
    from tailrace.run.health import health_document
    from tailrace.watch.result import Key

    found = health_document(options.settings(config), history=limit)
    if as_json:
        names = ("watchdog", "alerts", "channels", "recovered")
        typer.echo(json.dumps({name: found[name] for name in names}, indent=2, ensure_ascii=False))
        return
    if found["watchdog"] != "watching":
        typer.echo(f"the watchdog does not run ({found['watchdog']}): this is what it knew last")
    for each in found["alerts"]:
        name = Key(each["check"], each["subject"])
        typer.echo(f"firing     {each['severity']:8} {name}  since {each['since']}")
        typer.echo(f"           {each['summary']}")
    for each in found["recovered"]:
        name = Key(each["check"], each["subject"])
        typer.echo(
            f"recovered  {each['severity']:8} {name}  {each['since']} to {each['recovered_at']}"
        )
    for each in found["channels"]:
        if each["pending"]:
            typer.echo(f"channel {each['name']}: {each['pending']} not delivered: {each['error']}")
    if not found["alerts"] and not found["recovered"]:
        typer.echo("no alerts")
