"""A real Apache Kafka broker, for tests, demos and benchmarks.

Maven downloads its jars once into the user's cache; after that it needs only Java. One process is
broker and controller (KRaft), with small settings: one replica per partition, 512 MB of heap.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Self

from tailrace.process import die_with_parent
from tailrace.testing.maven import Jars
from tailrace.testing.maven import java as java_program
from tailrace.testing.process import Server, free_port, freeze

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

VERSION = "4.1.2"
_SCALA = "2.13"
_LOGGER = "1.7.36"
_TITLE = "embedded Kafka broker"
_JARS = Jars(
    name=f"kafka-{VERSION}",
    title=_TITLE,
    artifacts=(
        f"org.apache.kafka:kafka_{_SCALA}:{VERSION}",
        f"org.slf4j:slf4j-simple:{_LOGGER}",
    ),
)
_CLUSTER = "dGFpbHJhY2UtdGVzdHMtMQ"
"""A cluster id as Kafka requires it: 16 bytes in base64."""
_JAVA = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-Xshare:auto",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
_PLAIN = "PLAINTEXT"


class EmbeddedKafka(Server):
    """One broker. `destroy` does not remove a `data` folder that was passed in.

    `listeners` adds listeners, each named after a security protocol (`SSL`, `SASL_PLAINTEXT`,
    `SASL_SSL`) and with its own port; `config` holds their settings, as lines of
    server.properties. `scram` holds users and passwords for SCRAM-SHA-256 and SCRAM-SHA-512.
    `fast` enables the JVM's second compiler (C2), which takes a core for a minute: for benchmarks.
    """

    def __init__(
        self,
        *,
        data: Path | None = None,
        config: str = "",
        listeners: tuple[str, ...] = (),
        scram: Mapping[str, str] | None = None,
        fast: bool = False,
    ) -> None:
        super().__init__("trkafka-")
        self._java = _JAVA if fast else (*_JAVA, "-XX:TieredStopAtLevel=1")
        self.data = data or self.folder / "data"
        self._config = config
        self._scram = dict(scram or {})
        self._ports = {name: free_port() for name in (_PLAIN, "CONTROLLER", *listeners)}

    @property
    def port(self) -> int:
        """The port of the PLAINTEXT listener."""
        return self._ports[_PLAIN]

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return self.bootstrap_of(_PLAIN)

    def bootstrap_of(self, listener: str) -> str:
        """The address of one of the listeners."""
        return f"127.0.0.1:{self._ports[listener]}"

    @staticmethod
    def unavailable() -> str | None:
        """Why the embedded Kafka cannot run on this machine, or None. Downloads it if necessary."""
        try:
            _JARS.folder()
        except (RuntimeError, OSError) as error:
            return str(error)
        return None

    @staticmethod
    def classpath() -> str:
        """The Java class path of Kafka's broker and clients."""
        return _JARS.classpath()

    def start(self) -> Self:
        """Run the broker and wait until it serves clients."""
        java = [java_program(_TITLE), *self._java, "-cp", self.classpath()]
        properties = self.folder / "server.properties"
        properties.write_text(self._properties())
        if not (self.data / "meta.properties").exists():
            self._format(java, properties)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*java, "kafka.Kafka", str(properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                # A process group of its own: Ctrl-C reaches only the caller, which stops it.
                process_group=0,
                preexec_fn=lambda: die_with_parent(signal.SIGKILL),  # noqa: PLW1509
            )
        self._wait_until_ready(self._process)
        return self

    def _properties(self) -> str:
        names = [name for name in self._ports if name != "CONTROLLER"]
        where = {name: f"{name}://{self.bootstrap_of(name)}" for name in self._ports}
        protocols = [f"{name}:{name}" for name in names]
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{self.bootstrap_of('CONTROLLER')}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": _PLAIN,
            "listeners": ",".join(where.values()),
            "advertised.listeners": ",".join(where[name] for name in names),
            "listener.security.protocol.map": ",".join(["CONTROLLER:PLAINTEXT", *protocols]),
            "log.dirs": str(self.data),
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
            "group.initial.rebalance.delay.ms": "0",
            # A killed broker can register again only after its old session has expired. On a busy
            # machine a session that is too short expires while the broker runs.
            "broker.session.timeout.ms": "5000",
            "broker.heartbeat.interval.ms": "300",
        }
        text = "".join(f"{key}={value}\n" for key, value in lines.items())
        return f"{text}{self._config}\n"

    def _format(self, java: list[str], properties: Path) -> None:
        """Format the data folder and create the first users."""
        users = [
            f"--add-scram=SCRAM-SHA-{size}=[name={name},password={password}]"
            for name, password in self._scram.items()
            for size in (256, 512)
        ]
        command = ["format", "--cluster-id", _CLUSTER, "--config", str(properties), *users]
        done = subprocess.run(
            [*java, "kafka.tools.StorageTool", *command],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"cannot format Kafka's storage:\n{done.stdout}{done.stderr}")

    def _wait_until_ready(self, process: subprocess.Popen[bytes], timeout_s: float = 300) -> None:
        deadline = time.monotonic() + timeout_s
        while not (self._accepts() and self._serves()):
            if process.poll() is not None or time.monotonic() > deadline:
                output = self.log_file.read_text()[-4000:]
                self.kill()
                raise RuntimeError(f"the embedded Kafka broker did not start:\n{output}")
            time.sleep(0.05)

    def _accepts(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _serves(self) -> bool:
        """Whether the metadata lists a broker; the broker listens a moment earlier."""
        from confluent_kafka import KafkaException  # noqa: PLC0415 - only tests of Kafka need it
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415

        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        try:
            return bool(client.list_topics(timeout=10).brokers)
        except KafkaException:
            return False

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the broker until the block ends: connections stay open, without replies."""
        assert self._process is not None
        freeze(self._process.pid)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)
