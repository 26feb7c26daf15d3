"""The same pipeline on a standalone Spark cluster: a master, two workers, the log in a folder that
all of them see."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
import yaml

from tailrace.process import die_with_parent
from tailrace.testing.process import free_port
from tests.command import command
from tests.jetstream import received
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.testing import EmbeddedNats
    from tests.fix_capture import Captured
    from tests.fix_postgres import Database

pytestmark = pytest.mark.long

SPARK_CLASS = Path(pyspark.__file__).parent / "bin/spark-class"


@contextlib.contextmanager
def running(program: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            program,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            process_group=0,
            preexec_fn=lambda: die_with_parent(signal.SIGKILL),  # noqa: PLW1509
        )
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LONG_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def logged(log: Path, words: str, times: int = 1) -> None:
    wait_for(lambda: log.read_text().count(words) >= times, log.read_text)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The address of a master that two workers have joined."""
    port = free_port()
    deploy, address = "org.apache.spark.deploy", f"spark://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:
        master = [str(SPARK_CLASS), f"{deploy}.master.Master", "--host", "127.0.0.1"]
        master_log = tmp_path / "master.log"
        stack.enter_context(
            running([*master, "--port", str(port), "--webui-port", "0"], master_log)
        )
        logged(master_log, "New state: ALIVE")
        for number in range(2):
            worker = [str(SPARK_CLASS), f"{deploy}.worker.Worker", address]
            where = ["--host", "127.0.0.1", "--webui-port", "0", "-d", str(tmp_path / f"w{number}")]
            limits = ["--cores", "1", "--memory", "600m"]
            stack.enter_context(
                running([*worker, *where, *limits], tmp_path / f"worker{number}.log")
            )
        logged(master_log, "Registering worker", 2)
        yield address


@pytest.mark.timeout(600)
def test_pipeline_on_two_workers(
    database: Database,
    capture: Callable[..., Captured],
    nats_server: EmbeddedNats,
    cluster: str,
    tmp_path: Path,
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
    captured = capture(database)
    for number in range(10):
        database.execute(
            "INSERT INTO t SELECT g, 'row ' || g FROM generate_series(%s::int, %s) g",
            number * 100,
            number * 100 + 99,
        )
    captured.catch_up()
    name = database.name
    settings = {
        "log": {"path": str(captured.folder)},
        "data": str(tmp_path / "data"),
        "spark": {
            "master": cluster,
            "conf": {"spark.executor.memory": "512m"},
        },
        "pipelines": {
            "clustered": {
                "encoding": "json",
                "lanes": 2,
                "sink": {
                    "type": "nats",
                    "url": nats_server.url,
                    "stream": {"name": name, "subjects": [f"{name}.>"]},
                    "subject": f"{name}.{{table}}.{{operation}}",
                },
            }
        },
    }
    config = tmp_path / "tailrace.yml"
    config.write_text(yaml.safe_dump(settings))
    output, status = tmp_path / "pipelines.log", tmp_path / "data/status/pipelines.json"
    with running(command("pipelines", "-c", config), output) as pipelines:
        deadline = time.monotonic() + LONG_S
        delivered = 0
        while delivered < 1000:
            assert pipelines.poll() is None, output.read_text()[-4000:]
            assert time.monotonic() < deadline, output.read_text()[-4000:]
            time.sleep(0.5)
            with contextlib.suppress(OSError, ValueError, KeyError):
                said = (json.loads(status.read_text())["pipelines"] or {})["clustered"]
                assert said["state"] != "failed", said
                delivered = said["events"]
        pipelines.send_signal(signal.SIGTERM)
        assert pipelines.wait(LONG_S) == 0
    found = [message.json["data"]["id"] for message in received(nats_server.url, name)]
    assert sorted(found) == list(range(1000))
    executors = [path.parent.name for path in tmp_path.glob("w*/app-*/*/stderr")]
    assert len(executors) == 2
