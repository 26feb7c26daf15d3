"""The daemon's list of modules: complete, importable, and without what is not installed."""

from __future__ import annotations

import os
import subprocess
import sys

from tailrace.encode.shapes.registry import SHAPES
from tailrace.encode.shapes.shape_type import ShapeType
from tailrace.pipeline import daemon


def loaded(
    modules: tuple[str, ...] | None = None, *, missing: tuple[str, ...] = (), **env: str
) -> set[str]:
    """What a fresh interpreter has loaded after the daemon's imports; `missing` fail to import."""
    chosen = "daemon.MODULES" if modules is None else repr(modules)
    program = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({missing!r}))\n"
        "from tailrace.pipeline import daemon\n"
        f"daemon.load(*{chosen})\n"
        "print(*(name for name, module in sys.modules.items() if module is not None))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, env=os.environ | env
    )
    return set(done.stdout.decode().split())


def test_every_module_is_importable() -> None:
    found = loaded(daemon.MODULES)
    assert found.issuperset(daemon.MODULES)
    assert found.issuperset({"confluent_kafka", "numpy", "pyarrow"})


def test_the_modules_of_snapshots_are_importable() -> None:
    found = loaded(daemon.SNAPSHOT_MODULES)
    assert found.issuperset({*daemon.SNAPSHOT_MODULES, "psycopg"})


def test_a_sink_without_its_extra_is_left_out() -> None:
    found = loaded(daemon.MODULES, missing=("confluent_kafka",))
    assert set(daemon.MODULES) - found == {"tailrace.sinks.kafka.sink", "tailrace.shadow.sink"}


def test_only_the_sinks_that_are_used_are_loaded() -> None:
    found = loaded(TAILRACE_SINKS="http,another.package")
    assert {"httpcore", "tailrace.sinks.http.sink"} <= found
    assert not found & {"redis", "botocore", "elastic_transport", "confluent_kafka", "amqp"}


def test_every_shape_is_loaded() -> None:
    homes = {
        path.partition(":")[0]
        for shape in SHAPES.built_in.values()
        if isinstance(shape, ShapeType)
        for path in (shape.document, shape.layout, shape.plain_layout, shape.records)
        if path
    }
    assert homes <= set(daemon.MODULES)


def test_what_a_module_prints_does_not_reach_the_output() -> None:
    """Spark reads the daemon's address from there."""
    program = "from tailrace.pipeline import daemon; daemon.load('this')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b""
    assert b"Zen of Python" in done.stderr
