"""The columnar decoder against the one that takes a message at a time, on one log."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.report import Report
from benchmarks.source import capture, log_folder, source
from tailrace.decode.decoder import Decoder
from tailrace.log.changes import Decoder as OneByOne
from tailrace.log.reader import Earliest, Log

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.log.format.entry import Entry

_TRANSACTIONS, _ROWS = 2_000, 100
_REPETITIONS = 5


def run(quick: bool) -> Report:
    """`speedup`."""
    report = Report("decode: rows/s from entries in memory")
    with source() as made, log_folder() as folder:
        made.create_slot("decode")
        made.connection.execute("CALL fill(%s, %s)", (_TRANSACTIONS // (10 if quick else 1), _ROWS))
        capture(made, "decode", folder, made.end()).finish()
        log = Log.open(folder / "log")
        entries = list(log.read(log.resolve(Earliest())))
    by_message, by_column = [], []
    for _ in range(_REPETITIONS):
        by_message.append(_rate(_one_by_one, entries))
        by_column.append(_rate(_columnar, entries))
    report.add("message at a time", f"{median(by_message):,.0f} rows/s")
    report.add("columnar", f"{median(by_column):,.0f} rows/s")
    pairs = zip(by_column, by_message, strict=True)
    report.figure("speedup", median(mine / theirs for mine, theirs in pairs), "columnar ÷ message")
    return report


def _one_by_one(entries: list[Entry]) -> int:
    return sum(1 for _ in OneByOne().decode(entries))


def _columnar(entries: list[Entry]) -> int:
    decoder = Decoder()
    return sum(len(group) for entry in entries for group in decoder.decode(entry))


def _rate(decode: Callable[[list[Entry]], int], entries: list[Entry]) -> float:
    began = time.perf_counter()
    rows = decode(entries)
    seconds = time.perf_counter() - began
    if rows != sum(entry.changes for entry in entries):
        raise RuntimeError(f"{rows} rows decoded, the log holds another number")
    return rows / seconds
