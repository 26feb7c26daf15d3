"""`tailrace plan`, `apply` and `export`: the settings file and the settings that run."""

# ruff: noqa: PLC0415 - loaded when the command runs, not for --help

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli import options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.run.loaded import Loaded
    from tailrace.run.plan import Plan

_DIFFERENT = 2

DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FOLDER",
        help="Data folder of the running system. Default: that of the settings file.",
    ),
]


def plan(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    config: options.ConfigFile = None,
    data: DataFolder = None,
) -> None:
    """Show what a changed settings file would do to the running system. Changes nothing.

    Compares the file with the settings that `tailrace run` has loaded, object by object: sections,
    pipelines, users, alert channels. Of a secret it says only that it has changed. Run it with the
    environment of `tailrace run`: variables in the file are read here.

    \b
    Effects:
      nothing                  no process reads the key
      reload                   processes restart that only serve, watch or replicate
      pipeline restart         the pipelines restart, each at its checkpoint
      restart of tailrace run  capture reads the key, or a process is added or removed
      refused                  `tailrace run` does not accept the settings
    A reload with one of the last two is refused as a whole.

    \b
    Exit codes:
      0  no difference
      1  an error, such as an invalid file
      2  there is a difference

    \b
    Examples:
      tailrace plan
      tailrace plan -c new.yml --json | jq '.objects[].object'
      kubectl exec tailrace-0 -- tailrace plan -c /etc/tailrace/tailrace.yml
    """
    from tailrace.cli import report
    from tailrace.errors import TailraceError
    from tailrace.run.plan_text import plan_document, plan_lines

    try:
        _, _, found = _propose(config, data)
    except TailraceError as error:
        report(error)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(plan_document(found), indent=2, ensure_ascii=False))
    else:
        _print(plan_lines(found))
    raise typer.Exit(_DIFFERENT if found.objects else 0)


def apply(
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    reason: Annotated[
        str, typer.Option(help="Why; recorded in audit.jsonl of the data folder.")
    ] = "",
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, metavar="SECONDS", help="Max seconds to wait.")
    ] = 180.0,
    config: options.ConfigFile = None,
    data: DataFolder = None,
) -> None:
    """Apply a changed settings file to the running system.

    Shows the plan and asks. Then `tailrace run` loads its settings file again, and restarts only
    the processes that read what has changed; capture continues. The command waits until the
    pipelines of the plan run. Changes that need a restart of `tailrace run` are named, and
    nothing is applied. A file that was edited after the plan was shown is refused.

    \b
    Exit codes:
      0  applied, or nothing to apply
      2  refused (BAD_CONFIG)
      8  a process or a pipeline has not started again (PROCESS_FAILED)

    \b
    Examples:
      tailrace apply
      tailrace apply -c /etc/tailrace/tailrace.yml --yes --reason "filter of orders"
    """
    from tailrace.errors import ConfigError
    from tailrace.run.applying import Applying, check_runs
    from tailrace.run.plan_text import plan_lines
    from tailrace.run.reloads import order_reload

    folder, running, found = _propose(config, data)
    check_runs(folder)
    if str(found.file.absolute()) != running.file:
        raise ConfigError(
            f"`tailrace run` reads {running.file}, not {found.file.absolute()}",
            hint=f"Change that file, or compare with: tailrace plan -c {found.file}",
        )
    _print(plan_lines(found))
    if not found.objects:
        return
    found.check()
    if not yes:
        typer.confirm("Apply?", abort=True)
    applying = Applying(folder, found, timeout_s=timeout_s)
    order = order_reload(folder, found, user=getpass.getuser(), reason=reason)
    _print(applying.follow(order))


def export(
    *,
    config: options.ConfigFile = None,
    data: DataFolder = None,
) -> None:
    """Write the settings that run, as a settings file, to the standard output.

    A secret is written as a reference to a variable that is named after its key, such as
    ${TAILRACE_SOURCE_DSN}; the head of the file lists them. Keys that have their default value are
    omitted. Paths are absolute.

    \b
    Examples:
      tailrace export > running.yml
      tailrace export -c /etc/tailrace/tailrace.yml
    """
    from tailrace.run.export import export as written
    from tailrace.run.loaded import running

    folder = data or options.settings(config).data
    typer.echo(written(running(folder)).text, nl=False)


def _propose(config: Path | None, data: Path | None) -> tuple[Path, Loaded, Plan]:
    from tailrace.run.plan import propose

    file = config or (options.DEFAULT_FILE if options.DEFAULT_FILE.exists() else None)
    folder = data or options.settings(config).data
    return (folder, *propose(folder, file))


def _print(lines: Iterable[str]) -> None:
    from tailrace.cli.log.render import escape

    for line in lines:
        typer.echo(escape(line))
