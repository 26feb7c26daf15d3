"""kcat on the command line. Its consumer groups are in `test_groups`."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.fix_broker import KAFKA_MESSAGE_BYTES
from tests.integration.broker.clients import Librdkafka, Record
from tests.integration.broker.samples import create_topic, sample_records
from tests.waiting import LONG_S

pytestmark = pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not on PATH")


def run(bootstrap: str, *options: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = ["kcat", "-m", "120", "-b", bootstrap, *options]
    return subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=LONG_S, check=False
    )


def kcat(bootstrap: str, *options: str, given: str = "") -> str:
    done = run(bootstrap, *options, given=given)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(bootstrap: str, *options: str, given: str = "") -> str:
    done = run(bootstrap, *options, given=given)
    assert done.returncode != 0, done.stdout
    return done.stderr


def test_metadata(bootstrap: str) -> None:
    topic = create_topic(bootstrap, 3)
    metadata = json.loads(kcat(bootstrap, "-L", "-J", "-t", topic))
    assert [broker["name"] for broker in metadata["brokers"]] == [bootstrap]
    (found,) = metadata["topics"]
    assert [part["partition"] for part in found["partitions"]] == [0, 1, 2]
    assert {part["leader"] for part in found["partitions"]} == {1}


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kcat_produces_and_consumes(bootstrap: str, topic: str, compression: str) -> None:
    lines = "".join(f"k{number}:value {number}\n" for number in range(1000))
    kcat(bootstrap, "-P", "-t", topic, "-K:", "-z", compression, "-H", "a=b", given=lines)
    found = kcat(bootstrap, "-C", "-t", topic, "-e", "-q", "-f", "%h %k:%s\n")
    assert found == "".join(f"a=b {line}\n" for line in lines.splitlines())


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(bootstrap: str, topic: str, acks: str) -> None:
    idempotent = ("-X", f"enable.idempotence={str(acks == 'all').lower()}")
    kcat(bootstrap, "-P", "-t", topic, "-X", f"acks={acks}", *idempotent, given="one\ntwo\n")
    assert kcat(bootstrap, "-C", "-t", topic, "-c", "2", "-q") == "one\ntwo\n"


def test_null_keys_values_and_headers(bootstrap: str, topic: str) -> None:
    """Nulls, and the timestamp of another client."""
    kcat(bootstrap, "-P", "-t", topic, "-K:", "-Z", given=":v\nk:\n")
    Librdkafka(bootstrap).produce(topic, [Record(headers=(("h", None),))], acks=1)
    lines = kcat(bootstrap, "-C", "-t", topic, "-c", "3", "-q", "-J").splitlines()
    first, second, third = (json.loads(line) for line in lines)
    assert (first["key"], first["payload"]) == (None, "v")
    assert (second["key"], second["payload"]) == ("k", None)
    assert (third["key"], third["payload"], third["headers"]) == (None, None, ["h", None])
    assert third["ts"] == 1_700_000_000_000


def test_kcat_in_a_group(bootstrap: str, topic: str) -> None:
    group = ("-G", f"g-{topic}", "-X", "auto.offset.reset=earliest", "-q", topic)
    kcat(bootstrap, "-P", "-t", topic, given="one\ntwo\nthree\n")
    assert kcat(bootstrap, "-c", "3", *group) == "one\ntwo\nthree\n"
    kcat(bootstrap, "-P", "-t", topic, given="four\n")
    assert kcat(bootstrap, "-c", "1", *group) == "four\n"


def test_kcat_reads_from_positions(bootstrap: str, topic: str) -> None:
    Librdkafka(bootstrap).produce(topic, sample_records(10), acks=1)
    read = ("-C", "-t", topic, "-p", "0", "-e", "-q", "-f", "%o ")
    assert kcat(bootstrap, *read, "-o", "7") == "7 8 9 "
    assert kcat(bootstrap, *read, "-o", "-2") == "8 9 "
    assert kcat(bootstrap, *read, "-o", "end") == ""
    times = ("-o", "s@1700000000003", "-o", "e@1700000000006")
    assert kcat(bootstrap, *read, *times) == "3 4 5 "
    for ms, offset in ((-5, 0), (4, 4), (10, -1)):
        at = f"{topic}:0:{1_700_000_000_000 + ms}"
        assert kcat(bootstrap, "-Q", "-t", at) == f"{topic} [0] offset {offset}\n"


def test_large_messages(bootstrap: str, topic: str) -> None:
    line = "x" * (KAFKA_MESSAGE_BYTES - 150)
    write = ("-P", "-t", topic, "-X", "message.max.bytes=100000000")
    kcat(bootstrap, *write, given=line)
    assert kcat(bootstrap, "-C", "-t", topic, "-e", "-q") == f"{line}\n"
    error = refusal(bootstrap, *write, given="x" * KAFKA_MESSAGE_BYTES)
    assert "Message size too large" in error
    assert kcat(bootstrap, "-C", "-t", topic, "-e", "-q", "-f", "%o ") == "0 "


def test_kcat_reports_errors(bootstrap: str, topic: str) -> None:
    no = f"no-{topic}"
    assert "Unknown topic or partition" in refusal(bootstrap, "-C", "-t", no, "-e")
    assert "Unknown topic or partition" in kcat(bootstrap, "-L", "-t", no)
    assert "nknown partition" in refusal(bootstrap, "-P", "-t", topic, "-p", "9", given="v")
    strict = ("-X", "auto.offset.reset=error")
    far = refusal(bootstrap, "-C", "-t", topic, "-p", "0", "-o", "1000", "-e", *strict)
    assert "Offset out of range" in far
    nowhere = refusal(bootstrap, "-G", f"g-{topic}", *strict, topic)
    assert "No offset stored" in nowhere
