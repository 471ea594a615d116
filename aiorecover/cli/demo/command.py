"""The demonstration: a publishing process, a broker, both treated badly, and every record counted afterwards.

Three processes. This one directs, and remembers what was accepted: each record id that the publishing process
reports over a pipe after ``publish`` returned. The broker is the mock cluster in a process of its own, or a
Kafka that the user names, which is not ours to switch off. The publishing process (``child``) is the one
that is killed. With ``--exactly-once`` it publishes in transactions and is killed again and again, and only what is
committed is read back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
import random
import shutil
import tempfile
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaConnectionError, KafkaError, TopicAlreadyExistsError, for_code

from aiorecover.cli.demo.child import Task
from aiorecover.cli.demo.publisher import DemoError, Publisher, Stage, log_tail
from aiorecover.cli.demo.verdict import Outcome, judge, present_ends, read_back
from aiorecover.cli.endings import ReaderGoneError
from aiorecover.config import Config
from aiorecover.errors import ConfigError, EncodeError
from aiorecover.extras import extra
from aiorecover.serialization import check_topic
from aiorecover.testing.mock_cluster_process import MockClusterProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiorecover.cli.demo.view import View

__all__ = ["DemoError", "Options", "run"]

PARTITIONS = 6
REPLICAS = 3
# The embedded broker keeps 5 MiB a partition; a record of ours takes under 200 bytes there, keys are not
# spread quite evenly, and a batch may be appended twice.
MOST_EMBEDDED_RECORDS = 100_000
OUTAGE_S = 3.0
RESTART_S = 0.3
BEGINNING_S = 0.4  # within it a publisher finds out what became of the transaction that was left open
CAUGHT_UP_S = 0.1  # of publishing, which may wait in a broker's good days
SPARE_S = 40.0  # beyond the time that publishing takes: outages, restarts, delivery of the rest, reading back


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line; its help explains each."""

    records: int
    rate: int
    bootstrap_servers: str | None
    topic: str | None
    wal_dir: pathlib.Path | None
    seed: int
    exactly_once: bool = False


async def run(options: Options, view: View) -> Outcome:
    """Play the whole demonstration and judge it.

    Raises:
        ConfigError: an option or an installation needs mending; nothing was started.
        DemoError: it has broken down, or takes too long.

    """
    _check(options)
    began, limit_s = time.monotonic(), options.records / options.rate + SPARE_S
    directory = pathlib.Path(tempfile.mkdtemp(prefix="aiorecover-demo-"))
    log = directory / "demo.log"
    try:
        async with (
            asyncio.timeout(limit_s),
            _aiokafka_logs_to(log),
            _broker(options) as broker,
        ):
            stage = await _set_the_stage(options, view, broker, log)
            servers, topic = stage.task.bootstrap_servers, stage.task.topic
            begin = await present_ends(servers, topic)
            if options.exactly_once:
                await _kill_again_and_again(stage)
            else:
                await _break_everything(stage, broker)
            view.event("reading everything back with a plain aiokafka consumer")
            isolation = "read_committed" if options.exactly_once else "read_uncommitted"
            seen = await read_back(servers, topic, begin, isolation)
    except TimeoutError:
        raise DemoError(
            f"the demonstration was not over after {limit_s:.0f} s and ended before it counted the records, so none is "
            f"known to be missing: run it again on a quiet machine, or look at the log; {log_tail(log)}"
        ) from None
    except (KafkaError, OSError, RuntimeError) as error:
        what = str(error) if isinstance(error, KafkaError) else f"{type(error).__name__}: {error}"
        raise DemoError(f"the demonstration broke down: {what}; {log_tail(log)}") from error
    except (asyncio.CancelledError, ReaderGoneError):
        shutil.rmtree(directory, ignore_errors=True)
        raise
    verdict = judge(stage.accepted, seen, recognises_repeats=broker is None)
    if verdict.good:  # else it is kept, to be looked into
        shutil.rmtree(directory, ignore_errors=True)
    return Outcome(
        verdict=verdict,
        embedded=broker is not None,
        topic=topic,
        seconds=time.monotonic() - began,
        kills=stage.kills,
        recovered=stage.recovered,
        kept=None if verdict.good else f"{stage.task.wal_dir} {log}",
        exactly_once=options.exactly_once,
    )


def _check(options: Options) -> None:
    try:
        if options.topic is not None:
            check_topic(options.topic)
        Config.from_options(options.wal_dir or "wal", options.bootstrap_servers or "localhost", {})
    except EncodeError as error:
        raise ConfigError(str(error)) from None
    if options.bootstrap_servers is not None:
        return
    if options.exactly_once:
        raise ConfigError(
            "--exactly-once needs a Kafka of yours, --bootstrap-servers host:port: the embedded broker neither "
            "fences a producer nor keeps its position"
        )
    with extra("demo"):
        import confluent_kafka  # noqa: F401, PLC0415 - the embedded broker is inside
    if options.records > MOST_EMBEDDED_RECORDS:
        raise ConfigError(
            f"the embedded broker keeps no more than --records {MOST_EMBEDDED_RECORDS}: ask for fewer, or "
            "use a Kafka of yours with --bootstrap-servers"
        )
    if options.wal_dir is not None and options.wal_dir.exists() and any(options.wal_dir.iterdir()):
        message = "the embedded broker is a new cluster each time, so its --wal-dir must be new too"
        raise ConfigError(f"{message} wal_dir={options.wal_dir}")


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


async def _set_the_stage(options: Options, view: View, broker: MockClusterProcess | None, log: pathlib.Path) -> Stage:
    topic = options.topic or f"aiorecover-demo-{uuid.uuid4().hex[:8]}"
    servers = options.bootstrap_servers or (broker.bootstrap_servers if broker else "")
    wal_dir = options.wal_dir or log.parent / "wal"
    if broker is not None:
        await broker.create_topic(topic, partitions=PARTITIONS)
        view.event(f"embedded broker up at {servers}, pid {broker.pid}")
    else:
        await _create_topic(servers, topic)
        view.event(f"using {servers}: not ours, so it cannot be taken down")
    view.event(f"topic {topic}")
    view.event(f"write-ahead log {wal_dir}")
    task = Task(
        parent_pid=0,
        bootstrap_servers=servers,
        topic=topic,
        wal_dir=str(wal_dir),
        run=0,
        first=0,
        records=options.records,
        rate=options.rate,
        seed=options.seed,
        exactly_once=options.exactly_once,
    )
    return Stage(view, task, log)


async def _create_topic(bootstrap_servers: str, topic: str) -> None:
    """Make the topic unless it is there, with up to three replicas."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        try:
            await admin.start()
        except KafkaConnectionError:
            raise DemoError(
                f"Kafka cannot be reached, or does not answer: check the servers and the network {bootstrap_servers=}"
            ) from None
        brokers = (await admin.describe_cluster())["brokers"]
        answer: Any = await admin.create_topics([NewTopic(topic, PARTITIONS, min(REPLICAS, len(brokers)))])
    finally:
        await admin.close()
    for _, code, *rest in answer.topic_errors:
        if code not in {0, TopicAlreadyExistsError.errno}:
            raise for_code(code)(*rest)


async def _kill_again_and_again(stage: Stage) -> None:
    """Kill it in mid-stream, and soon after the start that follows, three times; then publish to the end."""
    dice = random.Random(stage.task.seed)
    publisher = await Publisher.start(stage)
    try:
        for span in ((0.1, 0.2), (0.4, 0.5), (0.7, 0.8)):
            await _accepted(stage, publisher, dice.uniform(*span))
            publisher = await _kill_and_restart(stage, publisher, "in mid-stream")
            await publisher.run_for(dice.uniform(0, BEGINNING_S))
            publisher = await _kill_and_restart(stage, publisher, "soon after its start")
        await publisher.finish()
    finally:
        await publisher.kill()


async def _break_everything(stage: Stage, broker: MockClusterProcess | None) -> None:
    """An outage, a kill in mid-stream, and both at once; then publish to the end."""
    dice = random.Random(stage.task.seed)
    outage_at, kill_at, both_at = (dice.uniform(*span) for span in ((0.1, 0.2), (0.4, 0.5), (0.65, 0.7)))
    # Shorter where there is little to publish, so that publishing is still going on at its end.
    outage_s = min(OUTAGE_S, 0.2 * stage.task.records / stage.task.rate)
    publisher = await Publisher.start(stage)
    try:
        if broker is not None:
            await _accepted(stage, publisher, outage_at)
            await _switch(stage, broker, up=False)
            before = len(stage.accepted)
            await publisher.run_for(outage_s)
            await _switch(stage, broker, up=True)
            while_down = len(stage.accepted) - before
            stage.view.event(f"{while_down:,} records accepted in {outage_s:.1f} s without a broker")
            await _caught_up(stage, publisher)
        await _accepted(stage, publisher, kill_at)
        publisher = await _kill_and_restart(stage, publisher, "in mid-stream")
        if broker is not None:
            await _accepted(stage, publisher, both_at)
            await _switch(stage, broker, up=False)
            await publisher.run_for(outage_s / 2)
            publisher = await _kill_and_restart(stage, publisher, "without a broker")
            await publisher.run_for(outage_s / 2)
            await _switch(stage, broker, up=True)
            await _caught_up(stage, publisher)
        await publisher.finish()
    finally:
        await publisher.kill()


async def _kill_and_restart(stage: Stage, publisher: Publisher, when: str) -> Publisher:
    await publisher.kill()
    stage.kills += 1
    stage.view.event(f"publisher pid {publisher.pid} killed with SIGKILL {when}", "red")
    await asyncio.sleep(RESTART_S)
    publisher = await Publisher.start(stage)
    try:
        await publisher.run_until(lambda: publisher.opened)
    except BaseException:
        await publisher.kill()
        raise
    return publisher


async def _switch(stage: Stage, broker: MockClusterProcess, *, up: bool) -> None:
    await (broker.broker_up() if up else broker.broker_down())
    if up:
        stage.view.event("broker UP again", "green")
    else:
        stage.view.event("broker DOWN: connections cut, new ones refused", "red")


async def _accepted(stage: Stage, publisher: Publisher, share: float) -> None:
    await publisher.run_until(lambda: len(stage.accepted) >= share * stage.task.records)


async def _caught_up(stage: Stage, publisher: Publisher) -> None:
    """Wait until only what was published just now is waiting, and say how long that took."""
    began = time.monotonic()
    backlog = publisher.pending
    await publisher.run_until(lambda: publisher.pending <= stage.task.rate * CAUGHT_UP_S + 1)
    stage.view.event(f"backlog of {backlog:,} delivered {time.monotonic() - began:.1f} s after the broker's return")
