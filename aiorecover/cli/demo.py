"""The demonstration: a publishing process, a broker, both treated badly, and every record counted afterwards.

Three processes. This one directs, and remembers what was accepted: each record id that the publishing process
reports over a pipe after ``publish`` returned. The broker is the mock cluster in a process of its own, or a
Kafka that the user names, which is not ours to switch off. The publishing process (``demo_child``) is the one
that is killed. With ``--exactly-once`` it publishes in transactions and is killed again and again, and only what is
committed is read back.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import pathlib
import random
import shutil
import tempfile
import time
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from aiorecover.cli.demo_publisher import DemoError, Publisher, Stage, log_tail
from aiorecover.cli.demo_verdict import Verdict, judge, present_ends, read_back
from aiorecover.config import Config
from aiorecover.errors import ConfigError, EncodeError
from aiorecover.serialization import check_topic
from aiorecover.testing.mock_cluster_process import MockClusterProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiorecover.cli.demo_view import View

__all__ = ["DemoError", "Options", "Outcome", "UsageError", "run"]

_PARTITIONS = 6
_REPLICAS = 3
# The embedded broker keeps 5 MiB a partition; a record of ours takes under 200 bytes there, keys are not
# spread quite evenly, and a batch may be appended twice.
_MOST_EMBEDDED_RECORDS = 100_000
_OUTAGE_SECONDS = 3.0
_RESTART_SECONDS = 0.3
# With --exactly-once: within this time a publisher finds out what became of the transaction that was left open.
_BEGINNING_SECONDS = 0.4
# What one lap of publishing may leave waiting in a broker's good days.
_CAUGHT_UP_SECONDS = 0.1
_LOG = "demo.log"
# Beyond the time that publishing takes: outages, restarts, delivery of the rest, reading back.
_SPARE_SECONDS = 40.0


class UsageError(Exception):
    """An option or an installation needs mending; nothing was started."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for; the meaning of each is in the command's help."""

    records: int
    rate: int
    bootstrap_servers: str | None
    topic: str | None
    wal_dir: pathlib.Path | None
    seed: int
    exactly_once: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict, and what is worth knowing beside it."""

    verdict: Verdict
    embedded: bool
    topic: str
    seconds: float
    kills: int
    recovered: int
    kept: str | None = None
    exactly_once: bool = False

    def as_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {**asdict(self), "verdict": self.verdict.as_json()}


async def run(options: Options, view: View) -> Outcome:
    """Play the whole demonstration and judge it.

    Raises ``UsageError`` before anything is started, ``DemoError`` if it breaks down or takes too long.
    """
    _check(options)
    began = time.monotonic()
    directory = pathlib.Path(tempfile.mkdtemp(prefix="aiorecover-demo-"))
    log = directory / _LOG
    try:
        async with (
            asyncio.timeout(options.records / options.rate + _SPARE_SECONDS),
            _aiokafka_logs_to(log),
            _broker(options) as broker,
        ):
            stage = await _set_the_stage(options, view, broker, directory)
            begin = await present_ends(stage.bootstrap_servers, stage.topic)
            await _play(stage)
            view.event("reading everything back with a plain aiokafka consumer")
            isolation = "read_committed" if options.exactly_once else "read_uncommitted"
            seen, cut_off = await read_back(stage.bootstrap_servers, stage.topic, begin, isolation)
        verdict = judge(stage.accepted, seen, cut_off, recognises_repeats=broker is None)
    except TimeoutError:
        raise DemoError(f"the demonstration took too long; {log_tail(log)}") from None
    except (KafkaError, OSError, RuntimeError) as error:
        what = str(error) if isinstance(error, KafkaError) else f"{type(error).__name__}: {error}"
        raise DemoError(f"the demonstration broke down: {what}; {log_tail(log)}") from error
    except asyncio.CancelledError:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    if verdict.good:  # else it is kept, to be looked into
        shutil.rmtree(directory, ignore_errors=True)
    return Outcome(
        verdict=verdict,
        embedded=broker is not None,
        topic=stage.topic,
        seconds=time.monotonic() - began,
        kills=stage.kills,
        recovered=stage.recovered,
        kept=None if verdict.good else f"{stage.wal_dir} {stage.log}",
        exactly_once=options.exactly_once,
    )


def _check(options: Options) -> None:
    try:
        if options.topic is not None:
            check_topic(options.topic)
        Config.from_options(options.wal_dir or "wal", options.bootstrap_servers or "localhost", {})
    except (ConfigError, EncodeError) as error:
        raise UsageError(str(error)) from None
    if options.bootstrap_servers is not None:
        return
    if options.exactly_once:
        raise UsageError(
            "--exactly-once needs a Kafka of yours, --bootstrap-servers host:port: the embedded broker neither "
            "fences a producer nor keeps its position"
        )
    if importlib.util.find_spec("confluent_kafka") is None:
        raise UsageError("the embedded broker is inside confluent-kafka: pip install 'aiorecover[demo]'")
    if options.records > _MOST_EMBEDDED_RECORDS:
        raise UsageError(
            f"the embedded broker keeps no more than --records {_MOST_EMBEDDED_RECORDS}: ask for fewer, or "
            "use a Kafka of yours with --bootstrap-servers"
        )
    if options.wal_dir is not None and options.wal_dir.exists() and any(options.wal_dir.iterdir()):
        raise UsageError(
            f"the embedded broker is a new cluster each time, so its --wal-dir must be new too; "
            f"wal_dir={options.wal_dir}"
        )


@contextlib.asynccontextmanager
async def _aiokafka_logs_to(log: pathlib.Path) -> AsyncIterator[None]:
    """Keep what our own clients log out of the view."""
    handler = logging.FileHandler(log)
    logger = logging.getLogger("aiokafka")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


@contextlib.asynccontextmanager
async def _broker(options: Options) -> AsyncIterator[MockClusterProcess | None]:
    if options.bootstrap_servers is not None:
        yield None
        return
    async with MockClusterProcess() as broker:
        yield broker


async def _set_the_stage(
    options: Options, view: View, broker: MockClusterProcess | None, directory: pathlib.Path
) -> Stage:
    topic = options.topic or f"aiorecover-demo-{uuid.uuid4().hex[:8]}"
    stage = Stage(
        options=options,
        view=view,
        broker=broker,
        bootstrap_servers=options.bootstrap_servers or (broker.bootstrap_servers if broker else ""),
        topic=topic,
        wal_dir=options.wal_dir or directory / "wal",
        log=directory / _LOG,
    )
    if broker is not None:
        await broker.create_topic(topic, partitions=_PARTITIONS)
        view.event(f"embedded broker up at {stage.bootstrap_servers}, pid {broker.pid}")
    else:
        await _create_topic(stage.bootstrap_servers, topic)
        view.progress.broker_up = None
        view.event(f"using {stage.bootstrap_servers}: not ours, so it cannot be taken down")
    view.event(f"topic {topic}")
    view.event(f"write-ahead log {stage.wal_dir}")
    return stage


async def _create_topic(bootstrap_servers: str, topic: str) -> None:
    """Make the topic unless it is there, with up to three replicas."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        await admin.start()
        brokers = (await admin.describe_cluster())["brokers"]
        new = NewTopic(topic, _PARTITIONS, min(_REPLICAS, len(brokers)))
        answer: Any = await admin.create_topics([new])
    finally:
        await admin.close()
    for _, code, *rest in answer.topic_errors:
        if code not in {0, TopicAlreadyExistsError.errno}:
            raise for_code(code)(*rest)


async def _play(stage: Stage) -> None:
    """The acts that were asked for."""
    dice = random.Random(stage.options.seed)
    await (_kill_again_and_again if stage.options.exactly_once else _break_everything)(stage, dice)


async def _kill_again_and_again(stage: Stage, dice: random.Random) -> None:
    """Each time in mid-stream, and soon after the start that follows; then publish to the end."""
    spans = ((0.1, 0.2), (0.4, 0.5), (0.7, 0.8))
    publisher = await Publisher.start(stage)
    try:
        for span in spans:
            await _accepted(stage, publisher, int(stage.options.records * dice.uniform(*span)))
            publisher = await _kill_and_restart(stage, publisher, "in mid-stream")
            await _begun(publisher)
            await publisher.run_for(dice.uniform(0, _BEGINNING_SECONDS))
            publisher = await _kill_and_restart(stage, publisher, "soon after its start")
        await publisher.finish()
    finally:
        await publisher.kill()


async def _break_everything(stage: Stage, dice: random.Random) -> None:
    """An outage, a kill in mid-stream, and both at once; then publish to the end."""
    moment = (int(stage.options.records * dice.uniform(*span)) for span in ((0.1, 0.2), (0.4, 0.5), (0.65, 0.7)))
    outage_at, kill_at, both_at = moment
    publisher = await Publisher.start(stage)
    try:
        if stage.broker is not None:
            await _accepted(stage, publisher, outage_at)
            await _outage(stage, publisher)
        await _accepted(stage, publisher, kill_at)
        publisher = await _kill_and_restart(stage, publisher, "in mid-stream")
        if stage.broker is not None:
            await _accepted(stage, publisher, both_at)
            publisher = await _kill_in_an_outage(stage, publisher)
        await publisher.finish()
    finally:
        await publisher.kill()


async def _outage(stage: Stage, publisher: Publisher) -> None:
    seconds = _outage_seconds(stage.options)
    await _switch_broker(stage, up=False)
    before = len(stage.accepted)
    await publisher.run_for(seconds)
    await _switch_broker(stage, up=True)
    while_down = len(stage.accepted) - before
    stage.view.event(f"{while_down:,} records accepted in {seconds:.1f} s without a broker")
    await _caught_up(stage, publisher)


async def _kill_and_restart(stage: Stage, publisher: Publisher, when: str) -> Publisher:
    pid = publisher.pid
    if publisher.finished:
        stage.view.event("publisher finished before it could be killed: a lower --rate would help")
        return publisher
    await publisher.kill()
    stage.kills += 1
    stage.view.progress.child_pid = None
    stage.view.event(f"publisher pid {pid} killed with SIGKILL {when}")
    await asyncio.sleep(_RESTART_SECONDS)
    return await Publisher.start(stage)


async def _kill_in_an_outage(stage: Stage, publisher: Publisher) -> Publisher:
    """Kill the publisher with a backlog and start it again while there is no broker to recover to."""
    half = _outage_seconds(stage.options) / 2
    await _switch_broker(stage, up=False)
    await publisher.run_for(half)
    publisher = await _kill_and_restart(stage, publisher, "without a broker")
    await _begun(publisher)
    await publisher.run_for(half)
    await _switch_broker(stage, up=True)
    await _caught_up(stage, publisher)
    return publisher


def _outage_seconds(options: Options) -> float:
    """Shorter where there is little to publish, so that publishing is still going on at its end."""
    return min(_OUTAGE_SECONDS, 0.2 * options.records / options.rate)


async def _switch_broker(stage: Stage, *, up: bool) -> None:
    if stage.broker is not None:
        await (stage.broker.broker_up() if up else stage.broker.broker_down())
    stage.view.progress.broker_up = up
    stage.view.event("broker UP again" if up else "broker DOWN: connections cut, new ones refused")


async def _begun(publisher: Publisher) -> None:
    await publisher.run_until(lambda: publisher.opened)


async def _accepted(stage: Stage, publisher: Publisher, count: int) -> None:
    await publisher.run_until(lambda: len(stage.accepted) >= count)


async def _caught_up(stage: Stage, publisher: Publisher) -> None:
    """Wait until only what was published just now is waiting, and tell how long that took."""
    began = time.monotonic()
    backlog = publisher.pending
    usual = int(stage.options.rate * _CAUGHT_UP_SECONDS) + 1
    await publisher.run_until(lambda: publisher.pending <= usual)
    seconds = time.monotonic() - began
    stage.view.event(f"backlog of {backlog:,} delivered {seconds:.1f} s after the broker's return")
