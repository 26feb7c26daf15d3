"""kcat, as people use it at a prompt."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.integration.broker.test_conformance import make_topic

pytestmark = pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not on PATH")


def kcat(bootstrap: str, *options: str, given: str = "") -> str:
    command = ["kcat", "-b", bootstrap, *options]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def test_metadata(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 3)
    shown = json.loads(kcat(bootstrap, "-L", "-J", "-t", topic))
    assert [broker["name"] for broker in shown["brokers"]] == [bootstrap]
    (found,) = shown["topics"]
    assert [part["partition"] for part in found["partitions"]] == [0, 1, 2]
    assert {part["leader"] for part in found["partitions"]} == {1}


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_in_and_out(bootstrap: str, compression: str) -> None:
    topic = make_topic(bootstrap)
    lines = "".join(f"k{number}:value {number}\n" for number in range(1000))
    kcat(bootstrap, "-P", "-t", topic, "-K:", "-z", compression, "-H", "a=b", given=lines)
    found = kcat(bootstrap, "-C", "-t", topic, "-e", "-q", "-f", "%h %k:%s\n")
    assert found == "".join(f"a=b {line}\n" for line in lines.splitlines())


def test_a_group(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    group = ("-G", f"g-{topic}", "-X", "auto.offset.reset=earliest", "-q", topic)
    kcat(bootstrap, "-P", "-t", topic, given="one\ntwo\nthree\n")
    assert kcat(bootstrap, "-c", "3", *group) == "one\ntwo\nthree\n"
    kcat(bootstrap, "-P", "-t", topic, given="four\n")
    assert kcat(bootstrap, "-c", "1", *group) == "four\n"
