"""Readers on a machine that follows: `tailrace tail` and PySpark, while its leader goes on."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

from tailrace.change import Op
from tailrace.log import acknowledged
from tailrace.log.format import mark as marks
from tests import command
from tests.fix_log import all_changes
from tests.integration.replica.cluster import arrived
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.integration.replica.cluster import Copy, Source
    from tests.integration.replica.conftest import Copies, Leads


def tailing(copy: Copy, file: Path, count: int) -> subprocess.Popen[bytes]:
    """`tailrace tail` that ends after so many changes."""
    options = ("--log", copy.store.folder, "--from=earliest", "--json", f"--limit={count}")
    with file.open("wb") as output:
        return subprocess.Popen(
            command.command("tail", *options), stdout=output, env=os.environ | {"COLUMNS": "200"}
        )


def test_readers_follow_a_copy(
    source: Source, copy: Copies, lead: Leads, spark: SparkSession, tmp_path: Path
) -> None:
    """GIVEN `visible: quorum`, `tailrace tail` and a streaming query on the follower's folder WHEN
    the leader goes on THEN both find every change, in order and once."""
    follower = copy()
    acknowledged.prepare(source.store, 1)
    marks.write(source.store, source.mark(), name=marks.VISIBLE, durably=True)
    lead(follower.address, mode="sync", visible="quorum")
    source.append(20)
    arrived(source, follower)
    before = len(all_changes(follower.store))
    tail = tailing(follower, tmp_path / "tail.json", before + 30)
    found: list[str] = []

    def keep(batch: DataFrame, _number: int) -> None:
        found.extend(row.id for row in batch.select("id").collect())

    frame = spark.readStream.format("tailrace").option("log", str(follower.store.folder)).load()
    stream = frame.writeStream.foreachBatch(keep)
    query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    wait_for(lambda: found, query.exception)
    while len(all_changes(follower.store)) < before + 30:
        source.append(5)
        arrived(source, follower)
    expected = all_changes(source.store)
    rows = [each.position.event_id for each in expected if each.op is not Op.MESSAGE]
    wait_for(lambda: len(found) >= len(rows), query.exception)
    query.stop()
    assert found == rows
    assert tail.wait(LONG_S) == 0
    shown = [json.loads(line)["id"] for line in (tmp_path / "tail.json").read_text().splitlines()]
    assert shown == [each.position.event_id for each in expected[: before + 30]]
