"""Pipelines to files: PostgreSQL, the log, Spark, and DuckDB as the reader."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.sinks.file.stores import queried
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fix_capture import Captured
    from tests.fix_pipeline import Delivery
    from tests.fix_postgres import Database

    Capturing = Callable[..., Captured]
    Delivering = Callable[..., Delivery]


def sink(folder: Path, **keys: Any) -> dict[str, Any]:
    return {"type": "file", "url": str(folder), **keys}


def rows_of(folder: Path) -> list[tuple[int, int]]:
    """Key and value of every change, in the order of the names of files."""
    found: list[tuple[int, int]] = []
    for path in sorted(folder.glob("public/counters/*")):
        if path.suffix == ".parquet":
            source = f"(SELECT decode(payload)::json AS row FROM read_parquet('{path}'))"
        else:
            source = f"(SELECT json AS row FROM read_json_objects('{path}'))"
        found += queried(
            f"SELECT (row->'data'->>'id')::int, (row->'data'->>'n')::int FROM {source}"
        )
    return found


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"where": "id > 0", "sink": {"roll_s": 0, "format": "jsonl", "compression": "gzip"}},
        {"lanes": 3, "sink": {"roll_rows": 20}},
    ],
    ids=["plain", "where", "lanes"],
)
def test_changes_arrive_once_and_in_order(
    database: Database,
    capture: Capturing,
    deliver: Delivering,
    tmp_path: Path,
    keys: dict[str, Any],
) -> None:
    """GIVEN a pipeline that is stopped and started THEN each change is in one file."""
    database.execute("CREATE TABLE counters (id int PRIMARY KEY, n int)")
    captured = capture(database)
    folder = tmp_path / "files"
    stages = dict(keys)
    to = sink(folder, **stages.pop("sink", {}))
    delivery = deliver(captured, to=to, max_open_s=1, **stages)
    database.execute("INSERT INTO counters SELECT g, 0 FROM generate_series(1, 20) g")
    for n in range(1, 5):
        database.execute("UPDATE counters SET n = n + 1")
        if n == 2:
            captured.catch_up()
            assert delivery.run().events == 60
    captured.catch_up()
    assert delivery.run().state == "stopped"
    seen: dict[int, list[int]] = defaultdict(list)
    found = rows_of(folder)
    assert len(found) == 100
    for key, n in found:
        seen[key].append(n)
    if "lanes" in stages:
        seen = defaultdict(list, {key: sorted(values) for key, values in seen.items()})
    assert seen == {key: [0, 1, 2, 3, 4] for key in range(1, 21)}


def test_an_open_batch_keeps_files_until_they_are_due(
    database: Database, capture: Capturing, deliver: Delivering, tmp_path: Path
) -> None:
    """GIVEN a pipeline that follows the log WHEN changes come one by one THEN they share files,
    which are complete when the batch ends."""
    database.execute("CREATE TABLE counters (id int PRIMARY KEY, n int)")
    captured = capture(database)
    folder = tmp_path / "files"
    delivery = deliver(captured, to=sink(folder), max_open_s=3)
    database.execute("INSERT INTO counters VALUES (0, 0)")
    captured.catch_up()
    with delivery.running() as progress:
        wait_for(lambda: progress.figures.state == "running", progress.current)
        for number in range(1, 30):
            database.execute(f"INSERT INTO counters VALUES ({number}, 0)")
            captured.catch_up()
        end = str(captured.log.end().position)
        wait_for(lambda: progress.figures.position == end, progress.current)
    assert rows_of(folder) == [(number, 0) for number in range(30)]
    assert len(list(folder.glob("public/counters/*"))) < 30
