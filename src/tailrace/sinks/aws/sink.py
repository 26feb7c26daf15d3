"""`AwsSink`: sends messages to a service of AWS through botocore."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from botocore.exceptions import BotoCoreError, ClientError

from tailrace.errors import SinkRefusedError
from tailrace.sinks.aws.session import client_of
from tailrace.sinks.aws.text import text_of
from tailrace.sinks.requests.sink import RequestSink, invalid_destination

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from tailrace.errors import PoisonedError
    from tailrace.finding import Finding
    from tailrace.sinks.aws.failures import Service
    from tailrace.sinks.aws.settings import AwsSettings
    from tailrace.sinks.contract import Lane
    from tailrace.sinks.outcome import Outcome


class AwsSink(RequestSink[Any]):
    """What the four services have in common: a request is accepted or refused entry by entry."""

    answers_per_message = True
    service: ClassVar[Service]

    def __init__(self, settings: AwsSettings, lane: Lane) -> None:
        super().__init__(settings, lane)
        self._aws = settings

    @abstractmethod
    def send_entries(
        self, client: Any, destination: str, rows: pa.RecordBatch
    ) -> Mapping[int, Outcome]:
        """Send a request. Returns the messages that were not accepted, and why."""

    @abstractmethod
    def takes(self, destination: str) -> bool:
        """Whether a destination is valid."""

    @abstractmethod
    def ping(self, client: Any) -> None:
        """Call something that changes nothing and needs no destination."""

    @abstractmethod
    def look_up(self, client: Any, destination: str) -> Iterator[Finding]:
        """Read the description of a destination. Yields what does not fit the settings."""

    def connect(self) -> Any:
        """A client. It connects when the first request is sent."""
        authority = self._aws.tls_ca
        if authority is not None and not os.access(authority, os.R_OK):
            raise SinkRefusedError(f"{authority} cannot be read", hint="Check tls_ca of the sink.")
        try:
            return client_of(self._aws, self.service.client)
        except (BotoCoreError, ValueError) as error:
            raise self.service.translate(error) from None

    def send(self, connection: Any, rows: pa.RecordBatch) -> Mapping[int, Outcome]:
        """Send a request. An error of the request is the outcome of all its messages."""
        destination = rows.column("destination")[0].as_py().decode()
        try:
            return self.send_entries(connection, destination, rows)
        except (BotoCoreError, ClientError) as error:
            named = self.resource(destination)
            outcome = self.service.outcome_of_request(error, destination=named)
            return dict.fromkeys(range(rows.num_rows), outcome)

    def flaw_of(self, destination: bytes) -> PoisonedError | None:
        """A destination must be the name of one."""
        text = text_of(destination)
        if text is not None and self.takes(text):
            return None
        return invalid_destination(destination, self.service.destination)
