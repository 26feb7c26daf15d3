"""What Tailrace knows about every sink for a service of AWS."""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar

from tailrace.errors import SinkRefusedError, TailraceError
from tailrace.finding import Finding, error
from tailrace.sinks.aws.destination import NameTemplate
from tailrace.sinks.aws.settings import AwsSettings
from tailrace.sinks.sink_type import SinkType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.sinks.aws.sink import AwsSink
    from tailrace.sinks.contract import Lane

# ruff: noqa: PLC0415 - botocore is an extra, and is loaded where a sink is opened

NOT_ATTRIBUTES = re.compile(
    r"id|key|encoding|(aws|amazon)\..*|.*[^A-Za-z0-9_.-].*|\..*|.*\.", re.IGNORECASE
)
"""Names of the sink's own attributes, and names that the services do not take."""
_MOST = 10 - len(("id", "key", "encoding"))
"""How many headers a message may have: the services take ten attributes."""
A = TypeVar("A", bound=AwsSettings)


class AwsType(SinkType[A]):
    """A service of AWS."""

    @abstractmethod
    def load(self) -> type[AwsSink]:
        """Import the sink."""

    def header_misfit(self, settings: A, names: Sequence[str]) -> str:
        """As attributes, if the service has them."""
        if self.own_headers is not None and len(names) > _MOST:
            return f"the sink {self.name} takes at most {_MOST} `headers`"
        return super().header_misfit(settings, names)

    def destination(self, template: str, *, database: str) -> NameTemplate:
        """Fills a template of names."""
        return NameTemplate(template, database=database)

    def sends_alone(self, settings: A) -> bool:
        """It keeps nothing of what it has sent."""
        del settings
        return True

    def open(self, settings: A, lane: Lane) -> AwsSink:
        """A client, which connects when the first request is sent."""
        try:
            sink = self.load()
        except ModuleNotFoundError as missing:
            raise SinkRefusedError(
                f"the sink {self.name} needs {missing.name}, which is not installed",
                hint="pip install 'tailrace[aws]'",
            ) from missing
        return sink(settings, lane)

    def probe(self, settings: A, *, name: str) -> None:
        """The service must answer and accept the login."""
        from tailrace.sinks.aws.checking import probe
        from tailrace.sinks.contract import Lane

        probe(self.open(settings, Lane(pipeline=name)))

    def check_destinations(self, settings: A, destinations: Sequence[str]) -> Iterator[Finding]:
        """Each must exist."""
        from tailrace.sinks.aws.checking import inspect
        from tailrace.sinks.contract import Lane

        try:
            yield from inspect(self.open(settings, Lane(pipeline="check")), destinations)
        except TailraceError as failed:
            yield error(str(failed), failed.hint)
