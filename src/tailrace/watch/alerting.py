"""When an alert is sent, repeated and recalled. Without clocks or channels of its own.

    quiet ──bad for for_s, or final──▶ firing ──not bad for for_s──▶ quiet
                                        │  ▲
                                        └──┘ repeat_s passed, or worse for for_s

An alert keeps its severity when its check becomes less severe; what is repeated says the present
one. A check that is initializing, or that another bad check explains, changes nothing: an alert
that fires stays, and none begins. When the other check is no longer bad, `for_s` begins anew. An
alert that fires for a check that no longer exists (a pipeline that was removed) ends as one that
has recovered.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from tailrace.watch.evaluation import explained
from tailrace.watch.result import RANK, Key, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tailrace.config import Alerts
    from tailrace.watch.result import Result

Kind = Literal["firing", "repeat", "resolved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert that was sent. Times are seconds since 1970."""

    id: str
    key: Key
    severity: str
    summary: str
    hint: str
    began_at: float
    """When the check became bad."""
    fired_at: float
    repeated_at: Mapping[str, float]
    """By channel, when it was sent there last."""
    resolved_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A message to send about an alert."""

    kind: Kind
    alert: Alert
    channels: tuple[str, ...]


@dataclass(slots=True)
class _Timer:
    """Since when a check is bad, worse than its alert, or good: monotonic times."""

    bad_at: float | None = None
    worse_at: float | None = None
    good_at: float | None = None


class Alerting:
    """The alerts of a system. Call `update` with all results, several times per `for_s`."""

    def __init__(
        self,
        alerts: Alerts,
        firing: Sequence[Alert] = (),
        *,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self._alerts = alerts
        self._new_id = new_id
        self._timers: dict[Key, _Timer] = {}
        self._time = 0.0
        self.firing: dict[Key, Alert] = {alert.key: alert for alert in firing}

    def update(
        self,
        results: Mapping[Key, Result],
        now: float,
        *,
        time: float,
        gone: Callable[[Key], bool],
    ) -> list[Notice]:
        """What is to be sent now. `gone` says whether the subject of an alert no longer exists.

        `now` is a monotonic clock. `time`, seconds since 1970, is for what is kept over a restart,
        and may jump.
        """
        self._time = time
        notices: list[Notice] = []
        for result in results.values():
            notices += self._update(result, now, quiet=explained(result, results))
        for key in [key for key in self.firing if key not in results and gone(key)]:
            notices.append(self._resolve(key, "it no longer exists"))
        return notices

    def _update(self, result: Result, now: float, *, quiet: bool) -> Iterator[Notice]:
        key = result.key
        timer = self._timers.setdefault(key, _Timer())
        if result.state is State.INITIALIZING:
            timer.bad_at = timer.good_at = None
        elif not result.state.bad:
            timer.bad_at = timer.worse_at = None
            if timer.good_at is None:
                timer.good_at = now
            if key in self.firing and now - timer.good_at >= self._alerts.for_s:
                yield self._resolve(key, result.summary)
        else:
            timer.good_at = None
            if quiet:
                timer.bad_at = timer.worse_at = None
                return
            if timer.bad_at is None:
                timer.bad_at = now
            yield from self._bad(result, timer, now)

    def _bad(self, result: Result, timer: _Timer, now: float) -> Iterator[Notice]:
        for_s = 0.0 if result.at_once else self._alerts.for_s
        present = self.firing.get(result.key)
        assert timer.bad_at is not None
        if present is None:
            if now - timer.bad_at >= for_s:
                yield self._fire(result, now - timer.bad_at)
            return
        severity = result.state.value
        if RANK[severity] <= RANK[present.severity]:
            timer.worse_at = None
        elif timer.worse_at is None:
            timer.worse_at = now
        self.firing[result.key] = present = replace(
            present, summary=result.summary, hint=result.hint
        )
        if timer.worse_at is not None and now - timer.worse_at >= for_s:
            timer.worse_at = None
            yield self._send("firing", replace(present, severity=severity))
        else:
            yield from self._repeat(present, min(severity, present.severity, key=RANK.__getitem__))

    def _fire(self, result: Result, bad_s: float) -> Notice:
        alert = Alert(
            id=self._new_id(),
            key=result.key,
            severity=result.state.value,
            summary=result.summary,
            hint=result.hint,
            began_at=self._time - bad_s,
            fired_at=self._time,
            repeated_at={},
        )
        return self._send("firing", alert)

    def _repeat(self, alert: Alert, severity: str) -> Iterator[Notice]:
        due = tuple(
            name
            for name in self._channels(severity)
            if (every_s := self._repeat_s(name))
            and self._time - alert.repeated_at.get(name, alert.fired_at) >= every_s
        )
        if due:
            notice = self._send("repeat", alert, due)
            yield replace(notice, alert=replace(notice.alert, severity=severity))

    def _repeat_s(self, channel: str) -> float:
        own = self._alerts.channels[channel].repeat_s
        return self._alerts.repeat_s if own is None else own

    def _resolve(self, key: Key, summary: str) -> Notice:
        alert = replace(self.firing.pop(key), resolved_at=self._time, summary=summary, hint="")
        # Every channel that has sent the alert, whatever its settings are now.
        sent = [name for name in alert.repeated_at if name in self._alerts.channels]
        return Notice(kind="resolved", alert=alert, channels=tuple(sent))

    def _send(self, kind: Kind, alert: Alert, channels: tuple[str, ...] | None = None) -> Notice:
        names = self._channels(alert.severity) if channels is None else channels
        sent = dict.fromkeys(names, self._time)
        alert = replace(alert, repeated_at={**alert.repeated_at, **sent})
        self.firing[alert.key] = alert
        return Notice(kind=kind, alert=alert, channels=names)

    def _channels(self, severity: str) -> tuple[str, ...]:
        """The channels that alerts of a severity are sent to."""
        rank = RANK[severity]
        channels = self._alerts.channels.items()
        return tuple(name for name, each in channels if RANK[each.severity] <= rank)
