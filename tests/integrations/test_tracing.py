"""Traces go through the ring: into the headers, into a span at delivery, and past the death of the process."""

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer, TopicPartition
from opentelemetry import propagate, trace
from opentelemetry.instrumentation.aiokafka import AIOKafkaInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode, TraceFlags

from aiorecover import DeliveryReport, EncodeError, RecoverableProducer
from aiorecover.integrations.forwarding import forwarded
from aiorecover.integrations.tracing import delivery_spans, traced
from aiorecover.testing import ApiKey, MockCluster
from tests.support.oracle import read_topic
from tests.test_readme import SNIPPETS, run

pytestmark = pytest.mark.asyncio

TOPIC = "orders"
RECORD_LIST_TOO_LARGE = 18
ENDS_S = 30

DYING = """\
import asyncio, json, os, signal, sys
from opentelemetry.sdk.trace import TracerProvider
from aiorecover import RecoverableProducer
from aiorecover.integrations.tracing import traced

async def main(servers, wal):
    producer = RecoverableProducer(wal, bootstrap_servers=servers)
    await producer.start()
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("service")
    told = []
    for number in range(3):
        with tracer.start_as_current_span(f"request {number}") as span:
            await producer.publish("orders", b"%d" % number, **traced(context={"number": number}))
        context = span.get_span_context()
        told.append([context.trace_id, context.span_id, context.trace_flags])
    print(json.dumps(told), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create_topic(TOPIC, partitions=1)
        yield cluster


class Exported:
    """A provider of tracers, and the spans that it has exported."""

    def __init__(self, **options: Any) -> None:
        self._spans = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, **options)
        self.provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracer = self.provider.get_tracer("service")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._spans.get_finished_spans() if span.name == name]


def header_of(span: Any) -> bytes:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}".encode()


async def test_a_record_carries_its_trace_to_consumers_and_its_delivery_is_a_span_of_it(
    cluster: MockCluster, tmp_path: Path
) -> None:
    exported, reports = Exported(), list[DeliveryReport]()

    async def own(report: DeliveryReport) -> None:
        reports.append(report)

    spans = delivery_spans(own, exported.provider)
    producer = RecoverableProducer(tmp_path, bootstrap_servers=cluster.bootstrap_servers, on_delivery=spans)
    async with producer:
        with exported.tracer.start_as_current_span("request") as request:
            await producer.publish(TOPIC, b"traced", **traced([("a", b"b")], {"user": 7}))
        await producer.publish(TOPIC, b"no span", **traced([("a", b"b")], {"user": 8}))
        await producer.publish(TOPIC, b"not asked for", context={"user": 9})
        await producer.flush(timeout_ms=20_000)
        cluster.push_partition_errors(TOPIC, 0, ApiKey.PRODUCE, RECORD_LIST_TOO_LARGE)
        with exported.tracer.start_as_current_span("request"):
            await producer.publish(TOPIC, b"dead", **traced())
        await producer.flush(timeout_ms=20_000)

    first, second, third = await read_topic(cluster.bootstrap_servers, TOPIC)
    assert first.headers[:-1] == (("a", b"b"), ("traceparent", header_of(request)))
    assert second.headers[:-1] == (("a", b"b"),)
    assert len(third.headers) == 1
    assert [report.context["user"] for report in reports[:3]] == [7, 8, 9]
    assert reports[3].status == "dead_lettered"

    delivered, dead = exported.named(f"send {TOPIC}")
    published = request.get_span_context()
    assert delivered.parent is not None
    assert [delivered.parent.span_id, delivered.links[0].context.span_id] == [published.span_id] * 2
    assert delivered.context.trace_id == published.trace_id
    assert (delivered.kind, delivered.status.status_code) == (SpanKind.PRODUCER, StatusCode.UNSET)
    assert dict(delivered.attributes or {}).items() >= {
        ("messaging.system", "kafka"),
        ("messaging.destination.name", TOPIC),
        ("messaging.destination.partition.id", "0"),
        ("messaging.kafka.offset", 0),
        ("aiorecover.record_id", first.record_id),
    }
    assert delivered.start_time == first.timestamp_ms * 1_000_000
    assert (delivered.end_time or 0) >= (delivered.start_time or 0)
    assert dead.status.status_code is StatusCode.ERROR
    assert dead.status.description == reports[3].error


async def test_after_kill_9_the_next_process_makes_the_spans(cluster: MockCluster, tmp_path: Path) -> None:
    cluster.broker_down()
    command = [sys.executable, "-c", DYING, cluster.bootstrap_servers, str(tmp_path)]
    died = subprocess.run(command, capture_output=True, text=True, timeout=ENDS_S, check=False)  # noqa: ASYNC221 - short
    assert died.returncode == -signal.SIGKILL, died.stderr
    published = [tuple(one) for one in json.loads(died.stdout)]

    cluster.broker_up()
    exported, seen = Exported(), list[Any]()
    spans = delivery_spans(lambda report: seen.append(report.context["number"]), exported.provider)
    async with RecoverableProducer(
        tmp_path, bootstrap_servers=cluster.bootstrap_servers, on_delivery=spans
    ) as producer:
        await producer.flush(timeout_ms=20_000)
    links = [span.links[0].context for span in exported.named(f"send {TOPIC}")]
    assert [(link.trace_id, link.span_id, link.trace_flags) for link in links] == published
    assert all(link.is_remote for link in links)
    assert seen == [0, 1, 2]
    headers = [dict(record.headers) for record in await read_topic(cluster.bootstrap_servers, TOPIC)]
    assert [one["traceparent"] for one in headers] == [b"00-%032x-%016x-%02x" % one for one in published]


async def test_a_trace_that_is_not_sampled_says_so_to_consumers_and_costs_no_note() -> None:
    exported = Exported(sampler=ALWAYS_OFF)
    with exported.tracer.start_as_current_span("request"):
        unsampled = traced(context={"user": 7})
    assert unsampled["context"] == {"user": 7}
    [(name, value)] = unsampled["headers"] or []
    assert name == "traceparent"
    assert not int((value or b"")[-2:], 16) & TraceFlags.SAMPLED
    assert traced() == {"headers": None, "context": None}


async def test_a_record_passed_on_belongs_to_the_trace_that_passes_it_on() -> None:
    exported = Exported()
    with exported.tracer.start_as_current_span("first"):
        first = traced([("aiorecover-id", b"x"), ("TraceParent", b"old")])
    with exported.tracer.start_as_current_span("second") as second:
        headers = traced(forwarded(first["headers"] or ()))["headers"]
    assert headers == [("aiorecover-source", b"x"), ("traceparent", header_of(second))]


async def test_a_context_that_is_no_dict_is_refused() -> None:
    with pytest.raises(EncodeError, match="must be a dict or None type=str"):
        traced(context="mine")  # type: ignore[arg-type]


async def test_a_function_that_was_not_called_is_named_at_the_first_report(
    cluster: MockCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers, "on_delivery": delivery_spans}
    async with RecoverableProducer(tmp_path, **options) as producer:
        await (await producer.publish(TOPIC, b"v")).delivered(timeout_ms=20_000)
    assert "on_delivery_failed" in caplog.text
    assert "say on_delivery=delivery_spans()" in caplog.text


@pytest_asyncio.fixture
async def instrumented(cluster: MockCluster) -> AsyncIterator[tuple[AIOKafkaConsumer, Exported]]:
    """A consumer of aiokafka under the usual instrumentation."""
    exported = Exported()
    AIOKafkaInstrumentor().instrument(tracer_provider=exported.provider)
    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest")
    try:
        await consumer.start()
        consumer.assign([TopicPartition(TOPIC, 0)])
        yield consumer, exported
    finally:
        await consumer.stop()
        AIOKafkaInstrumentor().uninstrument()


async def test_the_usual_instrumentation_of_aiokafka_goes_on_from_our_headers(
    instrumented: tuple[AIOKafkaConsumer, Exported], cluster: MockCluster, tmp_path: Path
) -> None:
    consumer, exported = instrumented
    spans = delivery_spans(tracer_provider=exported.provider)
    async with RecoverableProducer(
        tmp_path, bootstrap_servers=cluster.bootstrap_servers, on_delivery=spans
    ) as producer:
        with exported.tracer.start_as_current_span("request") as request:
            await producer.publish(TOPIC, b"one", **traced())
            await producer.flush(timeout_ms=20_000)
    record = await consumer.getone()
    carrier = {name: (value or b"").decode() for name, value in record.headers}
    extracted = trace.get_current_span(propagate.extract(carrier)).get_span_context()
    assert extracted.span_id == request.get_span_context().span_id
    [received] = exported.named(f"{TOPIC} receive")
    assert received.parent is not None
    assert received.parent.span_id == request.get_span_context().span_id
    assert len(exported.named(f"send {TOPIC}")) == 1
    assert exported.named(f"{TOPIC} send") == []  # ours goes past the producer that is instrumented


async def test_the_service_of_the_page_is_traced(
    cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exported = Exported()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", exported.provider)
    [name] = [name for name, text in SNIPPETS.items() if "integrations.tracing" in text]
    coroutine, _ = run(name, cluster)
    await coroutine
    [request], [delivered] = exported.named("request"), exported.named(f"send {TOPIC}")
    assert delivered.context.trace_id == request.context.trace_id
