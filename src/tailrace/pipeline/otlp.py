"""Sends spans by OTLP over HTTP. The only module that imports OpenTelemetry."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags

from tailrace import __version__
from tailrace.pipeline.traces import MAX_LINKS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.pipeline.traces import Batch


class Otlp:
    """A collector. Used by one thread; `close` by any."""

    def __init__(
        self, endpoint: str, headers: Mapping[str, str], *, timeout_s: float, service: str
    ) -> None:
        # It logs each attempt; `tailrace.pipeline.traces` logs that the collector is away.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._exporter = OTLPSpanExporter(
            endpoint=f"{endpoint}/v1/traces", headers=dict(headers), timeout=timeout_s
        )
        self._ended = _Ended()
        provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create({"service.name": service, "service.version": __version__}),
            span_limits=SpanLimits(max_links=MAX_LINKS),
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("tailrace", __version__)

    def send(self, spans: list[tuple[Batch, list[str]]]) -> bool:
        """Whether the collector has them."""
        self._ended.spans = []
        for batch, parents in spans:
            self._end(batch, parents)
        return self._exporter.export(self._ended.spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """End a request that is under way."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _end(self, batch: Batch, parents: list[str]) -> None:
        delivered = batch.delivered
        span = self._tracer.start_span(
            f"{batch.pipeline} micro-batch",
            context=Context(),
            kind=SpanKind.PRODUCER,
            links=[_link(parent) for parent in parents],
            start_time=batch.started_ns,
            attributes={
                "tailrace.pipeline": batch.pipeline,
                "tailrace.batch.number": batch.number,
                "tailrace.batch.attempts": batch.attempts,
                "tailrace.position.after": str(batch.after),
                "tailrace.position.upto": str(batch.upto),
                "tailrace.events": delivered.messages,
                "tailrace.bytes": delivered.bytes,
                "tailrace.duplicates": delivered.duplicates,
                "tailrace.parked": delivered.parked,
            },
        )
        span.end(batch.ended_ns)


class _Ended(SpanProcessor):
    """Keeps the spans that have ended."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


def _link(parent: str) -> Link:
    """A link to the span that a value of `traceparent` names: 00-TRACE-SPAN-FLAGS."""
    _, trace, span, flags = parent.split("-")
    return Link(
        SpanContext(
            int(trace, 16), int(span, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16))
        )
    )
