"""`tailrace pull`: what is exhausted in the store of a sink `pull`, and what is to become of it.

The commands change the store themselves, whether or not the HTTP server runs.
"""

# ruff: noqa: PLC0415 - heavy modules are loaded when a command runs, not for --help

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.cli import options

if TYPE_CHECKING:
    from pathlib import Path

pull_app = typer.Typer(
    name="pull", no_args_is_help=True, help="Messages that consumers were sent too often."
)

Pipeline = Annotated[str, typer.Argument(help="Name of a pipeline with a sink `pull`.")]
Numbers = Annotated[
    list[int] | None, typer.Option("--number", help="Number of a message. Repeatable.")
]
All = Annotated[bool, typer.Option("--all", help="All exhausted messages of the pipeline.")]


@pull_app.command()
def ls(
    pipeline: Pipeline,
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Max messages to list.")] = 50,
    after: Annotated[int, typer.Option(min=0, help="List messages after this number.")] = 0,
    config: options.ConfigFile = None,
) -> None:
    """List exhausted messages with their payloads as JSON, one per line, oldest first.

    \b
    Example:
      tailrace pull ls orders
    """
    from tailrace.run.pull_endpoints import exhausted_document
    from tailrace.sinks.pull.listing import Listing

    with Listing(_store(options.settings(config), pipeline)) as listing:
        while found := listing.exhausted(after=after, limit=limit):
            for message in found:
                typer.echo(json.dumps(exhausted_document(message), ensure_ascii=False))
            after, limit = found[-1].number, limit - len(found)


@pull_app.command()
def retry(
    pipeline: Pipeline, *, number: Numbers = None, every: All = False,
    config: options.ConfigFile = None,
) -> None:  # fmt: skip
    """Have exhausted messages delivered again, before later messages of their keys."""
    _decide(config, pipeline, "retry", number or [], every=every)


@pull_app.command()
def drop(
    pipeline: Pipeline,
    *,
    number: Numbers = None,
    every: All = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: options.ConfigFile = None,
) -> None:
    """Delete exhausted messages. Later messages of their keys are delivered then."""
    if not yes:
        typer.confirm("These messages will never be handled. Drop them?", abort=True)
    _decide(config, pipeline, "drop", number or [], every=every)


def _decide(config: Any, pipeline: str, action: str, numbers: list[int], *, every: bool) -> None:
    import getpass

    from tailrace import audit
    from tailrace.errors import ConfigError
    from tailrace.run.pull_endpoints import rules_of
    from tailrace.sinks.pull.queue import Queue
    from tailrace.sinks.pull.wake import Bell

    if every == bool(numbers):
        raise ConfigError(
            "say which messages: --number, or else --all",
            hint=f"List them: tailrace pull ls {pipeline}",
        )
    settings = options.settings(config)
    path = _store(settings, pipeline)
    chosen = None if every else numbers
    with Queue(path, rules_of(settings.pipelines[pipeline])) as store:
        with store.transaction():
            count = store.retry(chosen) if action == "retry" else store.drop(chosen)
        bell = Bell(path.parent)
        bell.ring()
        bell.close()
    user = getpass.getuser()
    audit.record(settings.data, f"pull.{action}", user=user, pipeline=pipeline, matched=count)
    typer.echo(f"{count:,} messages")


def _store(settings: Any, pipeline: str) -> Path:
    from tailrace.errors import ConfigError
    from tailrace.sinks.pull.database import store_of
    from tailrace.sinks.pull.settings import PullSink

    found = settings.pipelines.get(pipeline)
    if found is None or not isinstance(found.sink, PullSink):
        pulled = [
            name for name, each in settings.pipelines.items() if isinstance(each.sink, PullSink)
        ]
        raise ConfigError(
            f"there is no pipeline {pipeline!r} with a sink pull",
            hint=f"Pipelines with one: {', '.join(pulled) or 'none'}.",
        )
    return store_of(settings.data, pipeline)
