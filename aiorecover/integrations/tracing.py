"""Traces: the W3C context of a `publish` in the record's headers, and a span when the record is in Kafka.

>>> RecoverableProducer("wal", bootstrap_servers="localhost:9092", on_delivery=delivery_spans())  # doctest: +SKIP
>>> await producer.publish("orders", {"id": 1}, **traced())  # doctest: +SKIP

The context lies in the ring beside its record: where a process dies, the next one makes the span.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypedDict

from aiorecover.extras import extra

with extra("tracing"):
    from opentelemetry import propagate
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TracerProvider, get_current_span, get_tracer
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from aiorecover import ConfigError, DeliveryReport, EncodeError, __version__

__all__ = ["Traced", "delivery_spans", "traced"]

OnDelivery = Callable[[DeliveryReport], Awaitable[None] | None]

NS_PER_MS: Final = 1_000_000
_W3C: Final = TraceContextTextMapPropagator()


class Traced(TypedDict):
    """Arguments of `publish`."""

    headers: list[tuple[str, bytes | None]] | None
    context: dict[str, Any] | None


def traced(
    headers: Sequence[tuple[str, bytes | None]] | None = None, context: Mapping[str, Any] | None = None
) -> Traced:
    """Return the headers and the context to `publish` with in the current span.

    The headers get what the global propagator says, ``traceparent`` by default, in place of headers of that name. Where
    the span is sampled the context, which delivery reports have, gets ``traceparent`` and ``tracestate``. Without a
    span both are as given.

    Raises:
        EncodeError: the context is neither a mapping nor None.

    """
    if not isinstance(context, Mapping | None):
        raise EncodeError(f"a context beside a trace must be a dict or None type={type(context).__qualname__}")
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    kept = None if headers is None else list(headers)
    if carrier:
        names = {name.lower() for name in carrier}
        kept = [header for header in kept or () if header[0].lower() not in names]
        kept += [(name, text.encode()) for name, text in carrier.items()]
    if not get_current_span().get_span_context().trace_flags.sampled:
        return Traced(headers=kept, context=None if context is None else dict(context))
    noted: dict[str, Any] = dict(context or {})
    _W3C.inject(noted)
    return Traced(headers=kept, context=noted)


def delivery_spans(then: OnDelivery | None = None, tracer_provider: TracerProvider | None = None) -> OnDelivery:
    """Return an ``on_delivery`` that makes a span of each record that was published with `traced`.

    It is a child of the span that published, and linked to it. It lasts from the timestamp of the record until Kafka
    has it, or until it is a dead letter, which is an error.

    Args:
        then: an ``on_delivery`` of your own.
        tracer_provider: None for the global one.

    Raises:
        ConfigError: ``then`` is no function.

    """
    if not callable(then) and then is not None:
        raise ConfigError(f"then must be a function: say on_delivery=delivery_spans() type={type(then).__qualname__}")
    tracer = get_tracer("aiorecover", __version__, tracer_provider)

    def on_delivery(report: DeliveryReport) -> Awaitable[None] | None:
        if isinstance(report.context, dict) and "traceparent" in report.context:
            parent = _W3C.extract(report.context)
            now = time.time_ns()
            began = now if report.timestamp_ms is None else report.timestamp_ms * NS_PER_MS
            span = tracer.start_span(
                f"send {report.topic}",
                parent,
                SpanKind.PRODUCER,
                _attributes(report),
                [Link(get_current_span(parent).get_span_context())],
                min(began, now),
            )
            if report.status == "dead_lettered":
                span.set_status(Status(StatusCode.ERROR, report.error))
            span.end(now)
        return None if then is None else then(report)

    return on_delivery


def _attributes(report: DeliveryReport) -> dict[str, str | int]:
    """Return what OpenTelemetry's conventions for messaging name; and the record's id."""
    found: dict[str, str | int | None] = {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": report.topic,
        "messaging.destination.partition.id": None if report.partition is None else str(report.partition),
        "messaging.kafka.offset": report.offset,
        "aiorecover.record_id": report.record_id,
    }
    return {name: value for name, value in found.items() if value is not None}
