"""Machines with lines between them and to PostgreSQL, each of which can fail by itself.

    a ──► b      a line for each leader and follower
    a ──► PG     a line that reads what the machine acknowledges

`settle` brings the machines back to work, as a person would: takeovers included.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg

from tailrace.errors import ConfigError, LogFencedError, TailraceError
from tailrace.log.reader import Log
from tailrace.testing import TcpProxy
from tests.command import Service
from tests.faults.harness import Writers
from tests.faults.lines import Acknowledgements, PostgresLine
from tests.faults.members import Member, Reader
from tests.integration.replica.cluster import free_port
from tests.integration.replica.machines import Cluster, Row
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.position import Lsn
    from tests.fix_postgres import Database

POSTGRES = "postgres"
FENCED = LogFencedError.exit_code


class Fleet:
    """Machines in mode sync with `visible: quorum`; the first one leads."""

    def __init__(
        self, database: Database, folder: Path, count: int, *, seed: int, **settings: Any
    ) -> None:
        self.cluster = Cluster(database, folder)
        names = "abc"[:count]
        ports = {name: free_port() for name in names}
        self.lines: dict[tuple[str, str], TcpProxy] = {
            (one, other): TcpProxy("127.0.0.1", ports[other])
            for one in names
            for other in names
            if one != other
        }
        self.members: list[Member] = []
        for name in names:
            line = PostgresLine(database.server.port, partial(self._acknowledged, name))
            self.lines[name, POSTGRES] = line
            dsn = f"host=127.0.0.1 port={line.port} user=postgres dbname={database.name}"
            others = [f"127.0.0.1:{self.lines[name, each].port}" for each in names if each != name]
            address = f"127.0.0.1:{ports[name]}"
            made = Member(self.cluster, folder / name, address, others, dsn=dsn, **settings)
            self.members.append(made)
        stores = {member.folder.name: member.store for member in self.members}
        self.acknowledgements = Acknowledgements(stores, copies=2)
        self.leader = self.members[0]
        self.reader = Reader()
        self._seed = seed
        self._rng = random.Random(seed)
        self.takeovers = 0

    def _acknowledged(self, name: str, slot: str, lsn: Lsn) -> None:
        self.acknowledgements.note(name, slot, lsn)

    @property
    def followers(self) -> list[Member]:
        return [member for member in self.members if member is not self.leader]

    def start(self) -> None:
        for each in self.followers:
            each.run("follow")
        self.leader.lead()

    def end(self) -> None:
        """Kill everything."""
        for member in self.members:
            with contextlib.suppress(ProcessLookupError):
                member.signal(signal.SIGCONT)
            member.end()
        for line in self.lines.values():
            line.close()

    def read(self) -> None:
        """Read what any machine shows; each of them may believe that it leads."""
        for member in self.members:
            # A copy that is cut or has started over cannot be read for a moment.
            with contextlib.suppress(TailraceError, ConfigError, FileNotFoundError):
                self.reader.read(member)

    def take_over(self, member: Member, *, failpoints: str = "") -> Service:
        """Begin a takeover."""
        member.end()
        file = f"takeover-{time.monotonic_ns()}.log"
        env = {"TAILRACE_FAILPOINTS": failpoints}
        arguments = ("takeover", "--yes", "--force")
        return Service(*arguments, folder=member.folder, file=file, env=env).start()

    def finish(self, member: Member, takeover: Service) -> bool:
        """Wait for the end of a takeover. The winner leads, and the old leader finds itself
        deposed; a loser follows."""
        if takeover.wait() != 0:
            member.run("follow")
            return False
        old, self.leader = self.leader, member
        self.takeovers += 1
        member.lead()
        if old is not member:
            if old.alive("capture"):
                assert old.processes["capture"].wait() == FENCED, old.processes["capture"].output
            self.read()
            old.end()
            old.run("follow")
        return True

    def settle(self) -> None:
        """Wait until readers see all that is committed now; start what has ended."""
        end = wait_for(self._server_end, "PostgreSQL")

        def settled() -> bool:
            self._keep_running()
            self.read()
            with contextlib.suppress(TailraceError, ConfigError):
                return Log.open(self.leader.log_folder).end().end_lsn >= end
            return False

        wait_for(settled, lambda: self.leader.output()[-3000:])

    def _server_end(self) -> Lsn | None:
        """None while PostgreSQL recovers."""
        with contextlib.suppress(psycopg.OperationalError):
            return self.cluster.server_end()
        return None

    def _keep_running(self) -> None:
        for each in self.followers:
            if not each.alive("follow"):
                each.run("follow")
        ended = [name for name in ("capture", "replicate") if not self.leader.alive(name)]
        codes = [self.leader.processes[name].exit_code for name in ended]
        if FENCED in codes:
            self._elect()
            return
        for name in ended:
            self.leader.run(name)

    def _elect(self) -> None:
        """A takeover has fenced the leader and was not finished: somebody has to begin another."""
        self.leader.end()
        for member in self._rng.sample(self.members, len(self.members)):
            if member is self.leader and len(self.members) > 1 and self._rng.random() < 0.5:
                continue
            takeover = self.take_over(member)
            if takeover.wait() == 0:
                self.leader, old = member, self.leader
                self.takeovers += 1
                member.lead()
                if old is not member and not old.alive("follow"):
                    old.run("follow")
                return
            if member is not self.leader:
                member.run("follow")

    @contextlib.contextmanager
    def loaded(self) -> Iterator[Writers]:
        """Started and under load; in the end everything is checked."""
        try:
            self.start()
            with Writers(self.cluster.database, seed=self._seed) as writers:
                self.settle()
                yield writers
            self.settle()
            self.check()
        finally:
            self.end()

    def check(self) -> None:
        """What readers saw is what was committed, once and in order; all copies agree."""
        self.read()
        rows = self.cluster.committed()
        assert self.reader.rows == rows, first_difference(self.reader.rows, rows)
        for each in self.followers:
            wait_for(lambda at=each: at.held == self.leader.held, each.output)  # type: ignore[misc]
            assert each.agrees_with(self.leader)
        # What is written at this moment is no damage, but `verify` mentions it.
        self.leader.processes["capture"].stop()
        assert self.leader.check() == len(rows)
        self.acknowledgements.check()
        print(f"{self.takeovers} takeovers, {len(rows)} rows, each once and in order; "
              f"{self.acknowledgements.count} acknowledgements")  # fmt: skip


def first_difference(seen: list[Row], committed: list[Row]) -> str:
    """Where two lists of rows part, for a message."""
    pairs = enumerate(zip(seen, committed, strict=False))
    at = next((at for at, (one, other) in pairs if one != other), min(len(seen), len(committed)))
    return (
        f"{len(seen)} rows seen, {len(committed)} committed; from row {at} on "
        f"{seen[at : at + 2]} in place of {committed[at : at + 2]}"
    )
