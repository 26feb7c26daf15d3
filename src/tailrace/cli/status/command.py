"""`tailrace status`: is everything well? Once, or live on a terminal."""

# ruff: noqa: PLC0415 - heavy modules are loaded when a command runs, not for --help

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from tailrace.cli import options  # noqa: TC001 - typer reads the annotations
from tailrace.cli.at import At
from tailrace.cli.model_options import with_options
from tailrace.errors import ApiRefusedError, ApiUnreachableError, TailraceError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from tailrace.config import Config
    from tailrace.console.operations import Operations
    from tailrace.console.page import Document

_FILES = (
    "Read from the files of this machine, since no HTTP server of this system answers, or it has "
    "users and no TLS: without rates, lag in seconds and the slot."
)


@with_options(At)
def status(
    *,
    at: At,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh in place until Ctrl-C, on a terminal.")
    ] = False,
    every: Annotated[
        float, typer.Option(min=0.1, help="Seconds between refreshes of --watch.")
    ] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    config: options.ConfigFile = None,
) -> None:
    """Show the path of a change from PostgreSQL to every sink, and what is wrong, with the fix.

    Lag is what a pipeline has not delivered, in seconds and in bytes of WAL; p50 and p99 are times
    from commit to acknowledgement. Without --at, asks the HTTP server of the settings if the system
    runs, and reads the files of the data folder otherwise.

    \b
    Exit codes:
      0  healthy, or only warnings
      1  at least one error
      50 API_UNREACHABLE, 51 API_REFUSED  the system at --at does not answer, or refuses the token

    \b
    Examples:
      tailrace status
      tailrace status --watch --at https://db1.example.com:9090 --token-file token
      tailrace status --json | jq '.pipelines[] | {name, lag_s}'
    """
    source = _Source(at, config)
    console = Console(highlight=False)
    if watch and console.is_terminal and not as_json:
        raise typer.Exit(_watch(source, console, every))
    document, note = source.read()
    if as_json:
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        console.print(_drawn(document, note, console.width), soft_wrap=True)
    raise typer.Exit(_exit_code(document))


class _Source:
    """Where the overview comes from."""

    def __init__(self, at: At, config: Path | None) -> None:
        self._at, self._config = at, config
        self._files: Operations | None = None

    def read(self) -> tuple[Document, str]:
        """The overview without its trends, and a remark."""
        if self._at.at:
            found, note = self._at.system(None).get("/overview"), ""
        else:
            found, note = self._here()
        return {name: each for name, each in found.items() if name not in ("trends", "range")}, note

    def _here(self) -> tuple[Document, str]:
        from tailrace.cli import options as shared
        from tailrace.console.local import Local

        settings = shared.settings(self._config)
        if document := _served(settings):
            return document, ""
        if self._files is None:
            self._files = Local(settings)
        return self._files.get("/overview"), _FILES


def _served(config: Config) -> Document | None:
    """The overview of the HTTP server of this data folder; None if it does not answer."""
    from tailrace.console.remote import Remote
    from tailrace.run import status as files
    from tailrace.run.token import token_of

    report = files.read(files.folder(config.data), "run", files.RunStatus)
    serve = (report.status.processes or {}).get("serve") if report and report.up else None
    http = config.http
    if serve is None or not serve.up or not http.port:
        return None
    if http.users and not http.tls:
        # While the port is in use, another user's program would receive the token.
        return None
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(http.host, http.host)  # noqa: S104
    address = f"[{host}]:{http.port}" if ":" in host else f"{host}:{http.port}"
    url = f"{'https' if http.tls else 'http'}://{address}"
    server = Remote(
        url,
        token_of(config) if http.users else "",
        ca=http.tls.certificate if http.tls else None,
        pinned=http.tls is not None,
        insecure=True,
    )
    try:
        document = server.get("/overview")
    except (ApiUnreachableError, ApiRefusedError):
        return None
    # While the port is in use, it is another system that answers.
    pids = {each["name"]: each["pid"] for each in document["processes"]}
    return document if pids.get("serve") == serve.pid else None


def _watch(source: _Source, console: Console, every: float) -> int:
    """Refresh until Ctrl-C; the exit code of the last picture."""
    from rich.live import Live

    code = 0
    with Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                try:
                    document, note = source.read()
                    code = _exit_code(document)
                    picture: RenderableType = _drawn(document, note, console.width)
                except TailraceError as error:
                    code = error.exit_code
                    picture = Text(f"{error.code}: {error}\n{error.hint}", style="red")
                live.update(picture, refresh=True)
                time.sleep(every)
        except KeyboardInterrupt:
            return code


def _drawn(document: Document, note: str, width: int) -> Text:
    from tailrace.cli.status.picture import lines

    return Text("\n").join(lines(document, width=max(width, 60), note=note))


def _exit_code(document: Document) -> int:
    return 1 if document["state"] == "error" else 0
