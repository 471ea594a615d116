"""``aiorecover doctor``: look at everything that a producer depends on; each finding has its remedy."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import pathlib
import struct
import tempfile
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiokafka.client import CoordinationType
from aiokafka.errors import BrokerResponseError
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.transaction import AddOffsetsToTxnRequest
from aiokafka.record.util import calc_crc32c

from aiorecover.cli.inspection import inspect, troubles
from aiorecover.errors import DeliveryError, WalError
from aiorecover.kafka.client import FAILURES, Client
from aiorecover.kafka.outcomes import outcome_of
from aiorecover.kafka.produce import ProduceRequest
from aiorecover.ring.directory import IN_MEMORY, instances
from aiorecover.ring.files import Files
from aiorecover.ring.inspect import read_checkpoint
from aiorecover.ring.ring import LEAST_BYTES, kept_free

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from aiorecover.config import Config

__all__ = ["BAD", "FINE", "UNSURE", "Finding", "examine"]

FINE, UNSURE, BAD = "ok", "warning", "error"

CONNECT_S: Final = 3.0
FLUSHES: Final = 20
SLOW_FLUSH_S: Final = 0.05
PAGE: Final = 4096
TOPIC_RESOURCE: Final = 2
UNKNOWN_TOPIC: Final = 3
NOT_AUTHORIZED: Final = frozenset({29, 31})
NO_GROUP_RIGHT: Final = 30
NO_TRANSACTIONAL_RIGHT: Final = 53
UNKNOWN_PRODUCER: Final = 49  # the rights are looked at first
NO_PRODUCER: Final = 1 << 62  # no broker has given so many producer ids
NO_COORDINATOR: Final = frozenset({14, 15, 16})
TRIES: Final = 20
PAUSE_S: Final = 0.25
OFFSETS: Final = "__consumer_offsets"
ELSEWHERE: Final = frozenset({UNKNOWN_TOPIC, 5, 6, 7})  # codes of a leader that moves
NETWORK_FILE_SYSTEMS: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "ceph", "9p"})
COPY_ON_WRITE: Final = frozenset({"btrfs", "zfs", "overlay"})
TIME_ERROR: Final = 5  # of adjtimex: the clock is not synchronized
_AFTER_CRC = struct.pack(">hiqqqhii", 0, -1, 0, 0, -1, -1, -1, 0)  # no records: the last offset is below the first
_EMPTY_BATCH: Final = struct.pack(">qiibI", 0, 9 + len(_AFTER_CRC), -1, 2, calc_crc32c(_AFTER_CRC)) + _AFTER_CRC


class Finding(NamedTuple):
    """A finding and its remedy; ``level``: "ok", "warning" or "error"."""

    level: str
    subject: str
    text: str
    remedy: str = ""


async def examine(config: Config, topics: Sequence[str]) -> AsyncIterator[Finding]:
    """Yield the findings of a producer with these options that publishes to these topics."""
    for finding in await asyncio.to_thread(lambda: [*_directories(config), *_volume(config), *_clock()]):
        yield finding
    client = Client({**config.client, "bootstrap_servers": list(config.bootstrap_servers)})
    try:
        await client.bootstrap()
        async for finding in _kafka(client, config, topics):
            yield finding
    except DeliveryError as error:
        yield Finding(BAD, "kafka", str(error), "mend what is named; meanwhile publish accepts, and nothing is lost")
    except FAILURES as error:
        yield Finding(BAD, "kafka", f"a question was not answered: {error!r}", "look into the log of the brokers")
    finally:
        await client.close()


async def _kafka(client: Client, config: Config, topics: Sequence[str]) -> AsyncIterator[Finding]:
    metadata = client.metadata
    yield Finding(FINE, "kafka", f"reached; cluster {metadata.cluster_id}, brokers: {len(metadata.brokers)}")
    nodes = []
    for node, address in sorted(metadata.brokers.items()):
        finding = await _address(node, *address)
        nodes += [node] if finding.level == FINE else []
        yield finding
    if not nodes:
        return
    beside = (one for one in (config.dead_letter_topic, config.audit_topic) if one is not None)
    for topic in dict.fromkeys([*topics, *beside]):
        async for finding in _topic(client, nodes[0], topic, config):
            yield finding
    if not topics:
        yield Finding(UNSURE, "topics", "none was looked at", "name them with --topic")
    if config.guarantee == "exactly_once":
        async for finding in _transactions(client, nodes[0], config):
            yield finding


async def _address(node: int, host: str, port: int) -> Finding:
    subject, where = f"broker {node}", f"{host}:{port}"
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as error:
        why = f"no answer within {CONNECT_S:.0f} s" if isinstance(error, TimeoutError) else error.strerror or str(error)
        remedy = "mend advertised.listeners of the broker, the name service, or the firewall"
        return Finding(BAD, subject, f"kafka advertises {where}, which cannot be reached: {why}", remedy)
    writer.close()
    return Finding(FINE, subject, f"the address that it advertises, {where}, is reached")


async def _topic(client: Client, node: int, topic: str, config: Config) -> AsyncIterator[Finding]:
    subject = f"topic {topic}"
    answer = await client.ask(node, MetadataRequest([topic], allow_auto_topic_creation=False))
    code, _, *_, partitions = answer.topics[0]
    if code != 0:
        text = "there is no such topic" if code == UNKNOWN_TOPIC else outcome_of(code).reason
        yield Finding(BAD, subject, text, "make the topic, and grant Describe and Write on it")
        return
    copies = min((len(one[3]) for one in partitions), default=0)
    yield Finding(FINE, subject, f"{len(partitions)} partitions, {copies} replicas of each")
    yield await _right(client, topic, partitions)
    if config.recovery_check and not await _readable(client, topic, partitions):
        text = "may not be read: after a power cut, or a pause of 12 hours, what was in flight may come twice"
        yield Finding(UNSURE, subject, text, "grant Read on the topic")
    settings = await _settings(client, node, topic)
    if settings is None:
        yield Finding(UNSURE, subject, "its settings may not be read", "grant DescribeConfigs, to have them looked at")
        settings = {}
    for finding in _durability(subject, partitions, settings):
        yield finding
    for finding in _limits(subject, settings, config):
        yield finding


async def _right(client: Client, topic: str, partitions: Sequence[Any]) -> Finding:
    """Ask for the right to write by a batch without records: the broker looks at the right, then refuses the batch."""
    subject = f"topic {topic}"
    led = [(one[1], one[2]) for one in partitions if one[2] in client.metadata.brokers]
    if not led:
        return Finding(BAD, subject, "none of its partitions has a leader", "bring the brokers back")
    partition, leader = led[0]
    request = ProduceRequest(None, 1000, [(topic, partition, [_EMPTY_BATCH])])
    answers = await client.produce(leader, request, apart=True, timeout_s=10.0)
    code = answers.partitions[0].code
    if code in NOT_AUTHORIZED:
        return Finding(BAD, subject, outcome_of(code).reason, "grant Write on the topic")
    if code in ELSEWHERE:
        return Finding(UNSURE, subject, outcome_of(code).reason, "ask again in a minute")
    return Finding(FINE, subject, "may be written to")


async def _readable(client: Client, topic: str, partitions: Sequence[Any]) -> bool:
    """Ask by reading a byte of a partition; True also where none of its brokers answers."""
    for _, partition, leader, *_ in partitions:
        if leader in client.metadata.brokers:
            answer = await client.ask(leader, FetchRequest(0, 0, 1, 0, [(topic, [(partition, 0, 1)])]))
            ((_, answers),) = answer.topics
            return answers[0][1] not in NOT_AUTHORIZED
    return True


async def _transactions(client: Client, node: int, config: Config) -> AsyncIterator[Finding]:
    """Ask for the rights by transactional ids: what is sent is of no producer, so no transaction begins or ends."""
    for own in await asyncio.to_thread(_transactional_ids, pathlib.Path(config.wal_dir)):
        subject = f"transactional id {own}"
        code = await _code_of(client, own)
        if code == NO_TRANSACTIONAL_RIGHT:
            remedy = "grant Write and Describe on the transactional ids that begin with aiorecover-"
            yield Finding(BAD, subject, "may not be used", remedy)
        elif code == NO_GROUP_RIGHT:
            remedy = "grant Read on the groups that begin with aiorecover-"
            yield Finding(BAD, subject, "the group of this name may not be used", remedy)
        elif code == UNKNOWN_PRODUCER:
            yield Finding(FINE, subject, "may be used, and the group of this name")
        else:
            yield Finding(UNSURE, subject, outcome_of(code).reason, "ask again in a minute")
    answer = await client.ask(node, MetadataRequest([OFFSETS], allow_auto_topic_creation=False))
    code, _, *_, partitions = answer.topics[0]
    if code in NOT_AUTHORIZED or not await _readable(client, OFFSETS, partitions):
        remedy = "grant Read on this topic"
        yield Finding(BAD, f"topic {OFFSETS}", "the positions of transactions may not be stored", remedy)


async def _code_of(client: Client, own: str) -> int:
    """Return what the coordinator of a transactional id answers; Kafka makes its first one when it is asked for."""
    for _ in range(TRIES):
        try:
            coordinator = await client.coordinator(CoordinationType.TRANSACTION, own)
            answer = await client.ask(coordinator, AddOffsetsToTxnRequest(own, NO_PRODUCER, 0, own))
            code: int = answer.error_code
        except BrokerResponseError as error:
            code = error.errno
        if code not in NO_COORDINATOR:
            break
        await asyncio.sleep(PAUSE_S)
    return code


def _transactional_ids(wal_dir: pathlib.Path) -> list[str]:
    """Return those of the directories that are there; without any, one that would be."""
    found = []
    for one in instances(wal_dir) if wal_dir.is_dir() else []:
        with suppress(WalError):  # `_directories` names it
            found.append(read_checkpoint(one.path))
    return [f"aiorecover-{one.producer_id}" for one in found if one is not None] or ["aiorecover-doctor"]


async def _settings(client: Client, node: int, topic: str) -> dict[str, str] | None:
    try:
        answer = await client.ask(node, DescribeConfigsRequest([(TOPIC_RESOURCE, topic, None)]))
    except FAILURES:
        return None
    code, _, _, _, entries = answer.resources[0]
    return {entry[0]: entry[1] for entry in entries} if code == 0 else None


def _durability(subject: str, partitions: Sequence[Any], settings: Mapping[str, str]) -> Iterator[Finding]:
    copies = min((len(one[3]) for one in partitions), default=0)
    in_sync = min((len(one[4]) for one in partitions), default=0)
    needed = int(settings.get("min.insync.replicas", 1))
    if copies == 1:
        remedy = "give it three replicas (kafka-reassign-partitions.sh)"
        yield Finding(UNSURE, subject, "one replica: what Kafka has acknowledged is lost with one disk", remedy)
    elif settings and needed == 1:
        text = "min.insync.replicas=1: an acknowledged record may be on one broker alone"
        yield Finding(UNSURE, subject, text, f"set min.insync.replicas={max(2, copies - 1)}")
    if in_sync < needed:
        text = f"{in_sync} replicas are in sync, min.insync.replicas={needed}: nothing is taken"
        yield Finding(BAD, subject, text, "bring the brokers back")
    elif copies > 1 and needed == copies:
        text = f"min.insync.replicas={needed} of {copies} replicas: one broker that is away stops delivery"
        yield Finding(UNSURE, subject, text, f"set min.insync.replicas={copies - 1}")


def _limits(subject: str, settings: Mapping[str, str], config: Config) -> Iterator[Finding]:
    most = int(settings.get("max.message.bytes", config.max_request_size))
    if most < config.max_request_size:
        text = f"max.message.bytes={most} is below max_request_size={config.max_request_size}"
        yield Finding(UNSURE, subject, f"{text}: a record in between becomes a dead letter", "make the two equal")
    if "compact" in settings.get("cleanup.policy", ""):
        yield Finding(UNSURE, subject, "it is compacted: a record without a key becomes a dead letter", "give keys")
    if settings.get("message.timestamp.type") == "LogAppendTime":
        text = "message.timestamp.type=LogAppendTime: after an outage records have the time of their delivery"
        yield Finding(UNSURE, subject, text, "set CreateTime, to keep the time of publish")


def _directories(config: Config) -> Iterator[Finding]:
    path = pathlib.Path(config.wal_dir).absolute()
    if path.exists() and not path.is_dir():
        yield Finding(BAD, "wal_dir", f"{path} is a file", "name a directory, or a path where nothing is")
        return
    for one in inspect(path) if path.is_dir() and instances(path) else []:
        subject = f"directory {pathlib.Path(one['path']).name}"
        if one["error"]:
            yield Finding(BAD, subject, one["error"], "see docs/operating.md, or take another wal_dir")
        elif one["unreadable"]:
            text = f"{one['unreadable']} batches, or heads of segments, are damaged"
            yield Finding(UNSURE, subject, text, "'aiorecover verify' names them; the next start delivers the others")
        for trouble in troubles(one):
            yield Finding(UNSURE, subject, f"its owner says: {trouble}", "mend what is named")


def _volume(config: Config) -> Iterator[Finding]:
    files, path = Files(), pathlib.Path(config.wal_dir).absolute()
    there = next(one for one in (path, *path.parents) if one.is_dir())
    kind = files.file_system(there) or "unknown"
    free, total = files.volume(there)
    if kind in IN_MEMORY:
        text = f"{there} is on {kind}: records there end with the machine or its container"
        yield Finding(BAD, "volume", text, "choose a wal_dir on a disk")
    elif kind in NETWORK_FILE_SYSTEMS:
        yield Finding(BAD, "volume", f"{there} is on {kind}, over the network", "choose a wal_dir on a local disk")
    elif kind in COPY_ON_WRITE:
        yield Finding(UNSURE, "volume", f"{there} is on {kind}, which copies on write", "use ext4 or xfs, or a volume")
    room = free - kept_free(total, config.wal_min_free_bytes)
    text = f"{there} ({kind}) has room for {max(0, room) >> 20:,} MiB beside wal_min_free_bytes"
    if room < LEAST_BYTES:
        other = "lower wal_min_free_bytes" if free >= LEAST_BYTES else "choose a wal_dir on another volume"
        yield Finding(BAD, "volume", text, f"free disk space, or {other}")
    elif room < config.wal_max_bytes:
        text = f"{text}, wal_max_bytes is {config.wal_max_bytes >> 20:,} MiB"
        yield Finding(UNSURE, "volume", text, "lower wal_max_bytes to what fits, so that full means full")
    else:
        yield Finding(FINE, "volume", text)
    yield _flush(there)


def _flush(there: pathlib.Path) -> Finding:
    times = []
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            for _ in range(FLUSHES):
                file.write(bytes(PAGE))
                file.flush()
                began = time.perf_counter()
                os.fdatasync(file.fileno())
                times.append(time.perf_counter() - began)
    except OSError as error:
        return Finding(BAD, "disk", f"{there} cannot be written to: {error.strerror}", "mend rights or disk")
    median, worst = sorted(times)[FLUSHES // 2], max(times)
    text = f"fdatasync takes {median * 1000:.2f} ms, {worst * 1000:.2f} ms at worst"
    if median > SLOW_FLUSH_S:
        return Finding(UNSURE, "disk", text, 'with fsync="always" each publish waits so long: use a faster disk')
    return Finding(FINE, "disk", text)


def _clock() -> Iterator[Finding]:
    if not 1_600_000_000 < time.time() < 4_000_000_000:  # noqa: PLR2004 - 2020 and 2096
        yield Finding(BAD, "clock", f"it shows {time.strftime('%Y-%m-%d')}", "set the clock")
        return
    buffer = ctypes.create_string_buffer(256)  # struct timex, all zero: only asked
    state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    if state == TIME_ERROR:
        text = "the kernel calls it unsynchronized: timestamps of records may be off"
        yield Finding(UNSURE, "clock", text, "run chrony, ntpd or systemd-timesyncd on the machine")
    elif state < 0:
        yield Finding(UNSURE, "clock", f"the kernel does not say: {errno.errorcode.get(ctypes.get_errno())}")
    else:
        yield Finding(FINE, "clock", "synchronized")
