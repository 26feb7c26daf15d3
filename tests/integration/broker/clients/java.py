"""Apache Kafka's own client: one process that runs commands for all tests."""

from __future__ import annotations

import atexit
import base64
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.testing import EmbeddedKafka
from tests.integration.broker.clients.client import LONG_S, Client, GroupDescription, Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.integration.broker.clients.client import Acks, Reset


class JavaError(Exception):
    """What was thrown: its name, and what it says."""


class Java(Client):
    """Runs `JavaClient.java`."""

    def produce(
        self,
        topic: str,
        records: list[Record],
        *,
        acks: Acks = "all",
        compression: str = "none",
        patience_s: float = LONG_S,
    ) -> list[int]:
        lines = [
            [str(record.partition), str(record.timestamp), _text(record.key), _text(record.value)]
            + [_text(field) for name, value in record.headers for field in (name.encode(), value)]
            for record in records
        ]
        patience_ms = int(patience_s * 1000)
        output = self._run(
            "produce", topic, acks, compression, patience_ms, len(lines), given=lines
        )
        return [int(line[0]) for line in output]

    def consume(
        self,
        topic: str,
        count: int,
        *,
        group: str | None = None,
        start: int | None = None,
        reset: Reset = "earliest",
    ) -> list[Record]:
        at = "-" if start is None else start
        output = self._run("consume", topic, count, group or "-", at, reset)
        return [
            Record(
                _bytes(key),
                _bytes(value),
                tuple(
                    ((_bytes(name) or b"").decode(), _bytes(held))
                    for name, held in zip(headers[::2], headers[1::2], strict=True)
                ),
                int(timestamp),
                int(partition),
                int(offset),
            )
            for partition, offset, timestamp, key, value, *headers in output
        ]

    def commit(self, group: str, topic: str, offset: int, metadata: str = "") -> None:
        self._run("commit", topic, group, offset, _text(metadata.encode()))

    def committed(self, group: str, topic: str) -> tuple[int, str] | None:
        output = self._run("committed", topic, group)
        return (int(output[0][0]), (_bytes(output[0][1]) or b"").decode()) if output else None

    def bounds(self, topic: str) -> tuple[int, int]:
        ((first, following),) = self._run("bounds", topic, "-")
        return int(first), int(following)

    def at_times(self, topic: str, times: list[int]) -> list[int | None]:
        output = self._run("times", topic, "-", *times)
        return [None if offset == "-" else int(offset) for (offset,) in output]

    def create(self, topic: str, partitions: int, settings: dict[str, str]) -> None:
        self._run(
            "create", topic, partitions, *(field for pair in settings.items() for field in pair)
        )

    def partitions(self, topic: str) -> int:
        return int(self._run("partitions", topic)[0][0])

    def grow(self, topic: str, partitions: int) -> None:
        self._run("grow", topic, partitions)

    def cut(self, topic: str, offset: int) -> int:
        return int(self._run("cut", topic, offset)[0][0])

    def delete(self, topic: str) -> None:
        self._run("delete", topic)

    def settings(self, topic: str) -> dict[str, str]:
        return {entry[0]: entry[1] for entry in self._run("settings", topic)}

    def alter(self, topic: str, name: str, value: str) -> None:
        self._run("alter", topic, name, value)

    def groups(self) -> set[str]:
        return {name for (name,) in self._run("groups")}

    def group(self, name: str) -> GroupDescription:
        (state,), *members = self._run("group", name)
        return GroupDescription(state, tuple(member for (member,) in members))

    def delete_group(self, name: str) -> None:
        self._run("delete-group", name)

    def refusal(self, error: BaseException) -> str:
        assert isinstance(error, JavaError), error
        return str(error.args[0])

    def _run(
        self, command: str, *options: str | int, given: Sequence[list[str]] = ()
    ) -> list[list[str]]:
        settings = {"bootstrap.servers": self.bootstrap} | self.login.java()
        properties = "".join(f"{name}={value}\n" for name, value in settings.items())
        lines = [[command, _text(properties.encode()), *map(str, options)], *given]
        process = _process()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.writelines("\t".join(line) + "\n" for line in lines)
        process.stdin.flush()
        output: list[list[str]] = []
        for line in process.stdout:
            word, *fields = line.rstrip("\n").split("\t")
            if word == "ok":
                return output
            if word == "failed":
                raise JavaError(fields[0], (_bytes(fields[1]) or b"").decode())
            output.append(fields)
        raise RuntimeError(f"the process ended with {process.wait()}")


def no_java() -> str | None:
    """Why there is no Java here."""
    return EmbeddedKafka.unavailable() if shutil.which("javac") else "there is no javac"


def java(program: str, *options: str) -> list[str]:
    """The command of one of the programs here."""
    quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx1g", "-Xshare:auto"]
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    return [
        "java",
        *quick,
        quiet,
        "-cp",
        f"{_compiled()}:{EmbeddedKafka.classpath()}",
        program,
        *options,
    ]


@cache
def _process() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        java("JavaClient"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@cache
def _compiled() -> str:
    """The folder of the compiled classes, deleted after the tests."""
    folder = tempfile.mkdtemp(prefix="tailrace-java-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sources: Iterable[Path] = Path(__file__).parent.glob("*.java")
    command = ["javac", "-cp", EmbeddedKafka.classpath(), "-d", folder, *map(str, sources)]
    subprocess.run(command, check=True)
    return folder


def _text(value: bytes | None) -> str:
    return "-" if value is None else base64.b64encode(value).decode()


def _bytes(field: str) -> bytes | None:
    return None if field == "-" else base64.b64decode(field)
