"""`PubSubServer`: Google's own test server of Pub/Sub; `Topics`: what it holds."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import threading
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tailrace.testing.process import Server, free_port

if TYPE_CHECKING:
    from google.pubsub_v1.types import PubsubMessage

_SOURCES = Path(__file__).parent / "pubsub_server"
PROJECT = "project"
_PULLED = 1000


@cache
def unavailable() -> str | None:
    """Why the server cannot run here; None if it can."""
    go = shutil.which("go")
    if go is None:
        return "the server of Pub/Sub needs Go"
    path = _program()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several workers of pytest may need it at the same time.
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return None
        built = path.with_suffix(".new")
        command = [go, "build", "-buildvcs=false", "-o", str(built), "."]
        done = subprocess.run(command, cwd=_SOURCES, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"go build: {done.stderr.strip().splitlines()[-1]}"
        built.rename(path)
    return None


def _program() -> Path:
    """The program, which is kept: building it the first time takes minutes."""
    sources = [(_SOURCES / name).read_bytes() for name in ("main.go", "go.mod", "go.sum")]
    digest = hashlib.sha256(b"\0".join(sources)).hexdigest()[:16]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "tailrace" / f"pubsub_server-{digest}"


class PubSubServer(Server):
    """A server. What it holds is in its memory. With a certificate it also accepts TLS."""

    def __init__(self, *, certificate: Path | None = None, seed: int = 0) -> None:
        super().__init__("pubsub")
        self._certificate = certificate
        self._seed = seed
        self.port = free_port()
        self.tls_port = 0 if certificate is None else free_port()
        self._commands = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def keys(self) -> dict[str, Any]:
        """Settings of a sink."""
        return {"endpoint_url": self.url, "project": PROJECT}

    def start(self) -> Self:
        command = [str(_program()), "-port", str(self.port), "-seed", str(self._seed)]
        if self._certificate is not None:
            key = self._certificate.with_suffix(".key")
            command += ["-tls-port", str(self.tls_port)]
            command += ["-certificate", str(self._certificate), "-key", str(key)]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        self._expect(b"ready\n")
        return self

    def fail(self, *faults: dict[str, Any]) -> None:
        """Fail calls as described in `main.go`, instead of earlier faults."""
        with self._commands:
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(faults).encode() + b"\n")
            self.process.stdin.flush()
            self._expect(b"ok\n")

    def _expect(self, line: bytes) -> None:
        assert self.process.stdout is not None
        found = self.process.stdout.readline()
        assert found == line, self.recent_log()

    def _end(self, *args: Any, **keys: Any) -> None:
        process = self._process
        super()._end(*args, **keys)
        for pipe in () if process is None else (process.stdin, process.stdout):
            with suppress(OSError):
                pipe and pipe.close()


class Topics:
    """Topics of a server, each with a subscription, through Google's clients."""

    def __init__(self, server: PubSubServer) -> None:
        self.keys = server.keys
        # Every run of the tests loads this module.
        import grpc  # noqa: PLC0415
        from google.pubsub_v1 import PublisherClient, SubscriberClient  # noqa: PLC0415
        from google.pubsub_v1.services.publisher import transports as publishing  # noqa: PLC0415
        from google.pubsub_v1.services.subscriber import transports as reading  # noqa: PLC0415

        self._channel = grpc.insecure_channel(f"127.0.0.1:{server.port}")
        self._publisher = PublisherClient(
            transport=publishing.PublisherGrpcTransport(channel=self._channel)
        )
        self._subscriber = SubscriberClient(
            transport=reading.SubscriberGrpcTransport(channel=self._channel)
        )

    def close(self) -> None:
        self._channel.close()

    @staticmethod
    def unused(prefix: str = "t") -> str:
        """A name of nothing yet."""
        return f"{prefix}{uuid.uuid4().hex[:8]}"

    def create(self, name: str) -> str:
        """The name of a new topic with a subscription."""
        topic = f"projects/{PROJECT}/topics/{name}"
        self._publisher.create_topic(name=topic)
        self._subscriber.create_subscription(
            request={"name": _subscription(name), "topic": topic, "ack_deadline_seconds": 600}
        )
        return name

    def received(self, name: str) -> list[PubsubMessage]:
        """All messages of a topic since the last call. The server numbers them as it accepts them;
        the subscription has no order, so that one call returns many."""
        found: list[PubsubMessage] = []
        subscription = _subscription(name)
        while received := self._subscriber.pull(
            subscription=subscription, max_messages=_PULLED
        ).received_messages:
            found += [each.message for each in received]
            ids = [each.ack_id for each in received]
            self._subscriber.acknowledge(subscription=subscription, ack_ids=ids)
        return sorted(found, key=lambda each: int(each.message_id[1:]))


def _subscription(name: str) -> str:
    return f"projects/{PROJECT}/subscriptions/{name}"


if __name__ == "__main__":
    print(unavailable() or "the server of Pub/Sub is ready")
