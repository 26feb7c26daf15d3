"""`tailrace watch`: the loop that looks, judges, tells and notes, once per second.

Nothing in it waits for a disk, a server or a receiver: those have threads of their own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog
from pydantic import TypeAdapter

from tailrace import private
from tailrace.config import Alerts
from tailrace.errors import CorruptError, TailraceError
from tailrace.observe.health import AlertFigures, ChannelFigures, CheckFigures, WatchFigures
from tailrace.replica.greeting import node_name
from tailrace.state_file import StateFile
from tailrace.watch import store
from tailrace.watch.alerting import Alerting
from tailrace.watch.delivery import Delivery
from tailrace.watch.evaluation import SOURCE_CHECKS, evaluate
from tailrace.watch.facts import Facts
from tailrace.watch.files import FileWatch
from tailrace.watch.message import Message
from tailrace.watch.motion import Motion
from tailrace.watch.poller import Poller
from tailrace.watch.source import SourceWatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

    from tailrace.config import Config
    from tailrace.watch.alerting import Alert, Notice
    from tailrace.watch.facts import FileFacts, SourceFacts
    from tailrace.watch.result import Key, Result

TICK_S = 1.0
_SOURCE_EVERY_S = 2.0
_PRUNE_EVERY_S = 3600.0
_SETTLED_S = 60.0
"""By then every check that reads files has a result."""
STOP_S = 5.0
"""How long a stop waits for messages to be delivered."""
_DISK_S = 2.0
"""How long a stop waits for a disk to be read or written. It may hang."""
_STATUS = TypeAdapter(WatchFigures)


def run_watch(config: Config, *, follower: bool = False) -> bool:
    """Watch until SIGTERM or SIGINT; whether `tailrace run` has loaded other settings meanwhile."""
    stop = threading.Event()

    def on_signal(_signum: int, _frame: FrameType | None) -> None:
        stop.set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, on_signal)
    private.create_folder(config.data / "status")
    return Watchdog(config, follower=follower).run(stop)


class Watchdog:
    """Watches one system."""

    def __init__(self, config: Config, *, follower: bool = False) -> None:
        self._config = config
        self._alerts = config.alerts or Alerts()
        self._follower = follower
        self._host = node_name(config.replication)
        self._started_at = time.monotonic()
        self._motion = Motion()
        self._results: dict[Key, Result] = {}
        self._since: dict[Key, datetime] = {}
        self._writer = store.Writer(store.path_of(config.data))
        self._delivery = Delivery(self._alerts.channels, self._delivered)
        firing, kept = self._restore()
        self._alerting = Alerting(self._alerts, firing)
        self._kept = kept
        self._pruned_at = float("-inf")
        self._loaded_at = ""
        self._figures: WatchFigures | None = None
        self._status = StateFile(
            config.data / "status" / "watch.json", dict[str, Any], durable=False
        )
        self._reports = Poller("status", self._write_status, TICK_S)
        self._files = Poller("files", FileWatch(config).ask, TICK_S)
        self._heartbeats = self._alerts.heartbeat_s > 0 and config.capture.messages
        source = SourceWatch(
            config,
            heartbeat_s=self._alerts.heartbeat_s if self._heartbeats else 0.0,
            term=self._term,
            clock=time.monotonic,
        )
        self._source = Poller("source", source.ask, _SOURCE_EVERY_S)

    def _restore(self) -> tuple[Sequence[Alert], Sequence[Message]]:
        """What an earlier watchdog left. A file that cannot be read is set aside."""
        path = store.path_of(self._config.data)
        try:
            with store.History(path) as history:
                return history.firing(), history.messages()
        except CorruptError as error:
            structlog.get_logger().error("watch.history_corrupt", reason=str(error))
            with contextlib.suppress(OSError):
                path.rename(path.with_suffix(".corrupt"))
        except TailraceError as error:
            structlog.get_logger().error("watch.history_failed", reason=str(error))
        return [], []

    def run(self, stop: threading.Event) -> bool:
        """Watch until `stop` is set; then look once more, and deliver what waits.

        Without a supervisor it also ends when other settings are loaded, and returns True.
        """
        structlog.get_logger().info("watch.running", channels=sorted(self._alerts.channels))
        self._writer.start()
        self._delivery.start(self._kept)
        self._reports.start()
        self._files.start()
        if not self._follower:
            self._source.start()
        reloaded = False
        while not reloaded and not stop.wait(TICK_S):
            self.tick()
            reloaded = not self._alerts.supervised and self._reloaded()
        if not self._follower:
            self._source.stop()
        # The last states of the others: a final one may be why all of it ends.
        self._files.stop(_DISK_S, once_more=True)
        self.tick(state="stopping")
        self._delivery.close(STOP_S)
        self._writer.close(STOP_S)
        self._report("stopped")
        self._reports.stop(_DISK_S, once_more=True)
        structlog.get_logger().info("watch.stopped")
        return reloaded

    def _reloaded(self) -> bool:
        files: FileFacts | None = self._files.answer
        if files is None or not files.loaded_at:
            return False
        self._loaded_at = self._loaded_at or files.loaded_at
        return files.loaded_at != self._loaded_at

    def tick(self, state: str = "watching") -> None:
        """Look, judge, tell and note, once."""
        now = time.time()
        facts = self._facts(now)
        found = evaluate(facts, self._motion, self._alerts)
        self._note(found, now)
        notices = self._alerting.update(self._results, facts.now, time=now, gone=self._gone)
        for notice in notices:
            self._send(notice, now)
        if now - self._pruned_at > _PRUNE_EVERY_S:
            self._pruned_at = now
            self._writer.prune(now)
        self._report(state)

    def _term(self) -> int | None:
        files: FileFacts | None = self._files.answer
        return None if files is None else files.term

    def _facts(self, now: float) -> Facts:
        files: FileFacts | None = self._files.answer
        source: SourceFacts | None = self._source.answer
        monotonic = time.monotonic()
        return Facts(
            now=monotonic,
            time=now,
            running_s=monotonic - self._started_at,
            files=files,
            files_age_s=self._files.age_s,
            source=source,
            source_age_s=self._source.age_s,
            follower=self._follower,
        )

    def _note(self, found: Mapping[Key, Result], now: float) -> None:
        """Keep the results, and each change of a state in the history."""
        changes = []
        for key, result in found.items():
            before = self._results.get(key)
            self._results[key] = result
            if before is None or before.state is not result.state:
                self._since[key] = datetime.fromtimestamp(now, UTC)
                changes.append(
                    store.change(
                        now, key, state=result.state,
                        before=before.state if before else "", summary=result.summary,
                    )
                )  # fmt: skip
        self._writer.write(changes)

    def _gone(self, key: Key) -> bool:
        """Whether what an alert of an earlier run is about is no longer checked."""
        if key.check == "heartbeat" and not self._heartbeats:
            return True
        if key in SOURCE_CHECKS:
            return self._follower
        if key.subject in self._config.pipelines or self._files.answer is None:
            return False
        return time.monotonic() - self._started_at > _SETTLED_S

    def _send(self, notice: Notice, now: float) -> None:
        alert = notice.alert
        messages = [
            Message(
                id=uuid.uuid4().hex,
                channel=channel,
                kind=notice.kind,
                alert=alert.id,
                check=alert.key.check,
                subject=alert.key.subject,
                severity=alert.severity,
                summary=alert.summary,
                hint=alert.hint,
                since=_iso(alert.began_at),
                at=_iso(now),
                source=self._config.source.slot,
                host=self._host,
            )
            for channel in notice.channels
        ]
        events = structlog.get_logger()
        (events.info if notice.kind == "resolved" else events.warning)(
            f"alert.{notice.kind}", check=alert.key.check, subject=alert.key.subject,
            severity=alert.severity, summary=alert.summary, hint=alert.hint,
        )  # fmt: skip
        self._writer.write([store.alert(alert), *(store.message(now, each) for each in messages)])
        for message in messages:
            self._delivery.put(message)

    def _delivered(self, message: Message) -> None:
        self._writer.write([store.delivered(message)])

    def _report(self, state: str) -> None:
        """Have the status written."""
        self._figures = WatchFigures(
            state=state,
            checks=tuple(
                CheckFigures(
                    check=key.check, subject=key.subject, state=result.state.value,
                    summary=result.summary, hint=result.hint, since=self._since[key],
                )
                for key, result in sorted(self._results.items())
            ),
            alerts=tuple(
                AlertFigures(
                    id=each.id, check=key.check, subject=key.subject, severity=each.severity,
                    summary=each.summary, since=datetime.fromtimestamp(each.fired_at, UTC),
                )
                for key, each in sorted(self._alerting.firing.items())
            ),
            channels=tuple(
                ChannelFigures(name=name, pending=outbox.pending, error=outbox.error)
                for name, outbox in self._delivery.outboxes.items()
            ),
            firing=len(self._alerting.firing),
            history_error=self._writer.error,
        )  # fmt: skip

    def _write_status(self) -> None:
        """Write the status file. On a full disk it replaces its old content in place."""
        if self._figures is None:
            return
        header = {"pid": os.getpid(), "time": datetime.now(UTC).isoformat()}
        with contextlib.suppress(OSError):
            self._status.write(header | _STATUS.dump_python(self._figures, mode="json"))


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
