"""`python -m benchmarks NAME [--case CASE] [--json FILE] [--quick]`."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from benchmarks import (
    beside,
    bigtx,
    blocked,
    broker,
    capture,
    compression,
    console,
    decode,
    deliver,
    isolation,
    latency,
    mirror,
    parking,
    pull,
    replica,
    sinks,
    snapshot,
    startup,
)
from benchmarks.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable

BENCHMARKS: dict[str, Callable[[bool], Report]] = {
    "beside": beside.run,
    "bigtx": bigtx.run,
    "blocked": blocked.run,
    "broker": broker.run,
    "capture": capture.run,
    "compression": compression.run,
    "console": console.run,
    "decode": decode.run,
    "deliver": deliver.run,
    "isolation": isolation.run,
    "latency": latency.run,
    "mirror": mirror.run,
    "parking": parking.run,
    "pull": pull.run,
    "replica": replica.run,
    "sinks": sinks.run,
    "snapshot": snapshot.run,
    "startup": startup.run,
}
CASES: dict[str, dict[str, Callable[[Report, bool], None]]] = {
    "deliver": deliver.CASES,
    "latency": latency.CASES,
}
"""The parts of a benchmark that can run alone."""


def main(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(BENCHMARKS)}, or all.")],
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="Smaller data: a smoke test, not a figure.")] = False,
    shape: Annotated[
        str, typer.Option(help="For deliver: the backlog in this shape alone, such as creek.")
    ] = "",
    case: Annotated[
        str, typer.Option(help="For deliver and latency: this case alone, such as catchup or sql.")
    ] = "",
) -> None:
    """Run a benchmark with embedded servers and print its figures."""
    if name != "all" and name not in BENCHMARKS:
        raise typer.BadParameter(f"there is no benchmark {name}; there are {', '.join(BENCHMARKS)}")
    if shape and name != "deliver":
        raise typer.BadParameter("--shape is for the benchmark deliver")
    if case and case not in (cases := CASES.get(name, {})):
        raise typer.BadParameter(f"the cases of {name} are: {', '.join(cases) or 'none'}")
    console = Console()
    names = list(BENCHMARKS) if name == "all" else [name]
    console.print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    results = []
    for each in names:
        report = _run(each, quick, shape=shape, case=case)
        console.print(report.table())
        results.append({"name": each, "figures": report.figures})
    if json_file is not None:
        json_file.write_text(json.dumps(results if name == "all" else results[0], indent=2) + "\n")


def _run(name: str, quick: bool, *, shape: str, case: str) -> Report:
    if shape:
        return deliver.run_shape(shape, quick)
    if not case:
        return BENCHMARKS[name](quick)
    report = Report(f"{name}: {case} alone")
    CASES[name][case](report, quick)
    return report


if __name__ == "__main__":
    typer.run(main)
