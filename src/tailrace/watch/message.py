"""What is sent about an alert: the JSON document, and the same as text.

It has names, states, numbers and codes. Texts of errors that may quote a row are not in it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tailrace.watch.result import Key

Kind = Literal["firing", "repeat", "resolved", "test"]
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message for one channel."""

    id: str
    """Of the message: the same at every attempt to deliver it."""
    channel: str
    kind: Kind
    alert: str
    """Id of the alert: the same for its first message, its repetitions and its recovery."""
    check: str
    subject: str
    severity: str
    summary: str
    hint: str
    since: str
    """When the check became bad, ISO 8601."""
    at: str
    """When the message was created, ISO 8601."""
    source: str
    """The slot: it names the source."""
    host: str
    version: int = field(default=VERSION)

    def document(self) -> dict[str, Any]:
        """The JSON document that webhooks and commands get."""
        return {name: value for name, value in asdict(self).items() if name != "channel"}

    @property
    def title(self) -> str:
        """One line.

        >>> trial("ops", id="1", at="", source="shop", host="db1").title
        'Tailrace shop on db1: test'
        """
        where = f"Tailrace {self.source} on {self.host}"
        if self.kind == "test":
            return f"{where}: test"
        word = {"firing": self.severity, "repeat": f"still {self.severity}"}.get(
            self.kind, "recovered"
        )
        return f"{where}: {word}: {Key(self.check, self.subject)}"

    @property
    def text(self) -> str:
        """What was found, and what to do."""
        lines = [self.summary, self.hint if self.kind != "resolved" else ""]
        lines.append(f"since {self.since}" if self.since else "")
        return "\n".join(filter(None, lines))


def trial(channel: str, *, id: str, at: str, source: str, host: str) -> Message:  # noqa: A002
    """A message that says that a channel works."""
    return Message(
        id=id, channel=channel, kind="test", alert="", check="test", subject="",
        severity="warning", summary="This is a test: alerts of Tailrace arrive here.", hint="",
        since="", at=at, source=source, host=host,
    )  # fmt: skip
