"""Consumer groups whose members are processes: a test can stop, kill or suspend them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, TopicPartition

from tailrace.testing.process import freeze
from tests.integration.broker.clients import Librdkafka, Record
from tests.integration.broker.clients.java import java
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping

SESSION_MS = 2500
_PROGRAM = Path(__file__).with_name("member.py")
_ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}
_KCAT = re.compile(r"% Group \S+ rebalanced(.*)")
_PART = re.compile(r" \[(\d+)\]")


class Member:
    """A process that consumes."""

    def __init__(self, command: list[str], output: Path) -> None:
        self._output = output
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT
            )

    def output(self) -> str:
        """Its output, up to the last complete line."""
        return self._output.read_text().rpartition("\n")[0]

    def lines(self) -> list[list[str]]:
        """Its output, one list of fields per line."""
        return [line.split("\t") for line in self.output().splitlines()]

    def shares(self) -> list[set[int]]:
        """Its assignment after each rebalance."""
        assigned = [fields[1] for fields in self.lines() if fields[0] == "share"]
        return [{int(part) for part in each.split(",") if part} for each in assigned]

    def share(self) -> set[int]:
        """Its present assignment."""
        code = self._process.poll()
        assert code is None, f"it ended with {code}:\n{self.output()[-3000:]}"
        return (self.shares() or [set()])[-1]

    def reads(self) -> list[tuple[int, int]]:
        """Partitions and offsets of the records it has read."""
        rows = [fields[1:] for fields in self.lines() if fields[0] == "read"]
        return [(int(partition), int(offset)) for partition, offset in rows]

    def leave(self) -> None:
        """Leave the group and exit."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(LONG_S) == 0, self.output()[-3000:]

    def kill(self) -> None:
        """Kill the process without leaving the group."""
        self._process.kill()
        self._process.communicate()

    def suspend(self) -> None:
        """Suspend the process, as a long garbage collection would."""
        freeze(self._process.pid)

    def resume(self) -> None:
        """Continue after `suspend`."""
        self._process.send_signal(signal.SIGCONT)


class Kcat(Member):
    """kcat prints rebalances in its own format."""

    def shares(self) -> list[set[int]]:
        found: list[set[int]] = []
        for line in self.output().splitlines():
            if (rebalance := _KCAT.match(line)) is None:
                continue
            parts = {int(part) for part in _PART.findall(rebalance[1])}
            before = found[-1] if found else set()
            found.append(before - parts if "revo" in rebalance[1] else before | parts)
        return found

    def leave(self) -> None:
        self._process.terminate()
        assert self._process.wait(LONG_S) == 0, self.output()[-3000:]
        assert self._process.stdin is not None
        self._process.stdin.close()


class Members:
    """The members of one group, and the topic they read."""

    def __init__(self, kind: str, bootstrap: str, topic: str, folder: Path) -> None:
        self.kind, self.topic = kind, topic
        self.group = f"g-{uuid.uuid4().hex[:8]}"
        self._bootstrap, self._folder = bootstrap, folder
        self._all: list[Member] = []
        self.running: list[Member] = []
        self._end = 0

    def add(self, settings: Mapping[str, Any] | None = None, *, strategy: str = "range") -> Member:
        """Start another member."""
        given = {
            "bootstrap.servers": self._bootstrap,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 300,
            **(settings or {}),
        }
        member = (Kcat if self.kind == "kcat" else Member)(
            self._command(given, strategy), self._folder / f"{len(self._all)}.out"
        )
        self._all.append(member)
        self.running.append(member)
        return member

    def _command(self, settings: dict[str, Any], strategy: str) -> list[str]:
        """The command of a member; each library spells settings differently."""
        rule = "partition.assignment.strategy"
        own = {"fetch.max.wait.ms": "fetch.wait.max.ms", "request.timeout.ms": "socket.timeout.ms"}
        python = [sys.executable, "-P", str(_PROGRAM), self.kind, self.topic]
        match self.kind:
            case "librdkafka":
                spelt = {own.get(name, name): value for name, value in settings.items()}
                return [*python, json.dumps(spelt | {rule: strategy})]
            case "kcat":
                spelt = {own.get(name, name): value for name, value in settings.items()}
                # kcat commits automatically, or never.
                spelt |= {
                    rule: strategy,
                    "enable.auto.commit": "true",
                    "auto.commit.interval.ms": 50,
                }
                del spelt["bootstrap.servers"], spelt["group.id"]
                more = [word for name, value in spelt.items() for word in ("-X", f"{name}={value}")]
                show = ["-u", "-f", "read\\t%p\\t%o\\n"]
                return ["kcat", "-b", self._bootstrap, *more, *show, "-G", self.group, self.topic]
            case "java":
                spelt = settings | {rule: _ASSIGNORS[strategy]}
                return java(
                    "JavaMember",
                    self.topic,
                    *(str(word) for pair in spelt.items() for word in pair),
                )
            case _:
                spelt = {name.replace(".", "_"): value for name, value in settings.items()}
                spelt["enable_auto_commit"] = False
                if self.kind == "kafka-python":
                    spelt[rule.replace(".", "_")] = strategy
                return [*python, json.dumps(spelt)]

    def leave(self, member: Member) -> None:
        self.running.remove(member)
        member.leave()

    def kill(self, member: Member) -> None:
        self.running.remove(member)
        member.kill()

    def wait_for_shares(self, *counts: int) -> None:
        """Wait until the running members have these numbers of partitions, and all together."""

        def shared() -> bool:
            shares = [member.share() for member in self.running]
            found = sorted(part for share in shares for part in share)
            sizes = sorted(len(share) for share in shares)
            return sizes == sorted(counts) and found == list(range(sum(counts)))

        wait_for(shared, lambda: f"shares of {counts}:\n{self._outputs()}")

    def write(self, count: int = 3) -> None:
        """Produce `count` more records to each partition."""
        records = [Record(value=b"v", partition=part) for part in range(4) for _ in range(count)]
        # Not idempotent: librdkafka starts an idempotent producer with a pause.
        Librdkafka(self._bootstrap).produce(self.topic, records, acks=1)
        self._end += count

    def reads(self) -> list[tuple[int, int]]:
        """The records that all members have read, also those that ended.

        A member may read after it has expired, and before it learns so. It cannot commit then, so
        the records do not count; kcat does not wait for commits, and prints them.
        """
        found = [read for member in self._all for read in member.reads()]
        early = any(isinstance(member, Kcat) for member in self._all)
        return list(set(found)) if early else found

    def wait_until_read(self) -> None:
        """Wait until every record is read, each once."""
        written = [(part, offset) for part in range(4) for offset in range(self._end)]
        wait_for(
            lambda: len(self.reads()) >= len(written),
            lambda: f"{len(written)} records:\n{self._outputs()}",
        )
        assert sorted(self.reads()) == written, self._outputs()

    def wait_until_committed(self) -> None:
        """Wait until every record is committed: kcat commits late."""
        wait_for(lambda: self._committed() == {self._end}, "all records to be committed")

    def _committed(self) -> set[int]:
        reader = Consumer({"bootstrap.servers": self._bootstrap, "group.id": self.group})
        found = reader.committed([TopicPartition(self.topic, part) for part in range(4)], LONG_S)
        reader.close()
        return {each.offset for each in found}

    def _outputs(self) -> str:
        return "\n".join(f"{place}:\n{each.output()}" for place, each in enumerate(self._all))

    def end(self) -> None:
        """Whoever is left."""
        for member in self._all:
            member.kill()
