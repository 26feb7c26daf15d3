"""What the rest of Tailrace knows about a kind of sink: one object per kind, found by its name.

Settings, `tailrace check`, the pipeline's tasks, the encoder and the reference pages all read this
object. They never ask for a sink by its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from pydantic import Field

from tailrace.errors import TailraceError
from tailrace.finding import Finding, Severity, error
from tailrace.settings import Section

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator, Sequence

    from tailrace.sinks.contract import Lane, Sink
    from tailrace.sinks.destination import Template


class SinkSettings(Section):
    """The keys of `sink:`. A kind of sink adds its own and narrows `type` to its name."""

    type: str = Field(description="Kind of sink.")

    @property
    def template(self) -> str:
        """Where a message goes when the pipeline has no `route`: a template of names."""
        return ""

    @property
    def linger_s(self) -> float:
        """For how long changes are collected before they are written, near the end of the log."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """What users can rely on, as the sink's page and the reference state it."""

    delivery: str
    """`at least once`, `effectively once` or `exactly once`, and under which setting."""
    order: str
    duplicates: str
    """How a repeated message is refused, and what can still cause one."""
    largest_message: str
    batch: str
    """How many messages are in flight or in one request."""


S = TypeVar("S", bound=SinkSettings)


class SinkType(ABC, Generic[S]):
    """A kind of sink. Methods import the client library of the sink only when they are called."""

    name: ClassVar[str]
    title: ClassVar[str]
    """As its project writes it: `NATS JetStream`."""
    settings: type[S]
    promises: ClassVar[Promises]
    records: ClassVar[bool] = False
    """Whether it takes records of the broker (`tailrace.encode.records`) instead of messages."""
    backlog_in_one_task: ClassVar[bool] = False
    """Whether the task that reads a backlog also delivers it. For sinks whose client takes little
    CPU per message: a second process then gains less than the way to it through the JVM costs."""

    own_headers: ClassVar[re.Pattern[str] | None] = None
    """Names of headers that a pipeline cannot set. None: messages of this sink have no headers."""
    all_or_nothing: ClassVar[bool] = False
    """Whether a flush stores nothing if a message is not accepted: the others are written again."""

    @abstractmethod
    def destination(self, template: str, *, database: str) -> Template:
        """Fills the template of destinations, with names escaped as this sink needs it."""

    def misfit(self, settings: S, *, shape: str, encoding: str) -> str:
        """Why it cannot take messages of a shape in an encoding; empty if it can."""
        del settings, shape, encoding
        return ""

    def header_misfit(self, settings: S, names: Sequence[str]) -> str:
        """Why messages cannot have these headers; empty if they can."""
        del settings
        if self.own_headers is None:
            return f"messages of the sink {self.name} have no headers: remove `headers`"
        taken = [name for name in names if self.own_headers.fullmatch(name)]
        if taken:
            return f"the sink {self.name} does not take the header {taken[0]}: choose another name"
        return ""

    def group_misfit(self, settings: S) -> str:
        """Why what must stay in order cannot be other than the key; empty if it can."""
        del settings
        return ""

    def atomic(self, settings: S) -> bool:
        """Whether a flush stores the messages of a transaction together."""
        del settings
        return False

    def may_park(self, settings: S) -> bool:
        """Whether messages that are not accepted can be parked. Not if the others of their
        transaction must not be delivered without them."""
        return not (self.records or self.atomic(settings))

    def parks(self, settings: S) -> bool:
        """Whether they are parked unless the pipeline says otherwise."""
        return self.may_park(settings)

    def stores_position(self, settings: S) -> bool:
        """Whether a flush stores the position with the messages. Nothing of a batch with a refused
        message is flushed then: its messages may be others once the pipeline was changed."""
        del settings
        return False

    def sends_alone(self, settings: S) -> bool:
        """Whether a message can be sent apart from the pipeline. Not if the sink keeps positions,
        or knows its own messages at the destination: both are the running pipeline's."""
        del settings
        return False

    @abstractmethod
    def open(self, settings: S, lane: Lane) -> Sink:
        """A sink for one lane of a pipeline, not connected yet."""

    @abstractmethod
    def probe(self, settings: S, *, name: str) -> None:
        """Raise an error unless the server answers. `name` is the pipeline's."""

    def check(self, settings: S) -> Iterator[Finding]:
        """What `tailrace check` reports about the server. Changes nothing."""
        try:
            self.probe(settings, name="check")
        except TailraceError as failed:
            yield error(str(failed), failed.hint)
        else:
            yield Finding(severity=Severity.OK, finding=f"{self.title} answers")

    def check_destinations(self, settings: S, destinations: Sequence[str]) -> Iterator[Finding]:
        """What `tailrace check` reports about the destinations that the template gives."""
        del settings, destinations
        return iter(())
