"""The other stores, each through the interface that it offers, at the level of durability that it is asked for."""

import sqlite3
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diskcache
import litequeue
import persistqueue

SYNCHRONOUS = ("OFF", "NORMAL", "FULL")  # SQLite's, by number
INSERT = "INSERT INTO records (data) VALUES (?)"


class OtherStore:
    """``append`` stores one payload; ``chunk_append``, where there is one, a chunk in one transaction."""

    append: Callable[[bytes], object]
    chunk_append: Callable[[list[bytes]], object]

    def __init__(self, *, together: bool) -> None:
        self._together = together
        self.settled = 0

    async def store(self, chunk: list[bytes]) -> None:
        if self._together:
            self.chunk_append(chunk)
            return
        append = self.append
        for payload in chunk:
            append(payload)

    async def store_timed(self, chunk: list[bytes], times: "array[int]") -> None:
        append, clock = self.append, time.perf_counter_ns
        if self._together:
            began = clock()
            self.chunk_append(chunk)
            times.append(clock() - began)
            return
        for payload in chunk:
            began = clock()
            append(payload)
            times.append(clock() - began)


def ask(connection: sqlite3.Connection, synchronous: str) -> None:
    """Set what a commit waits for, and see that it is so."""
    connection.execute(f"PRAGMA synchronous={synchronous}")
    confirm(connection, synchronous)


def confirm(connection: sqlite3.Connection, synchronous: str) -> None:
    """The connection is in WAL mode and waits for exactly what it is measured for."""
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    (number,) = connection.execute("PRAGMA synchronous").fetchone()
    found = mode, SYNCHRONOUS[number]
    assert found == ("wal", synchronous), f"SQLite does something else: {found=} {synchronous=}"


# -- SQLite by itself --------------------------------------------------------------------------------------------------


def connect(directory: str, synchronous: str) -> sqlite3.Connection:
    """A database with one table; transactions are begun by hand."""
    connection = sqlite3.connect(Path(directory) / "records.db", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    ask(connection, synchronous)
    connection.execute("CREATE TABLE IF NOT EXISTS records (id INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    return connection


def insert_all(connection: sqlite3.Connection, chunk: list[bytes]) -> None:
    """In one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(INSERT, [(payload,) for payload in chunk])
    connection.execute("COMMIT")


class SqliteStore(OtherStore):
    def __init__(self, directory: str, synchronous: str, *, together: bool = False) -> None:
        super().__init__(together=together)
        self._connection = connect(directory, synchronous)
        self._execute = self._connection.execute

    def append(self, payload: bytes) -> None:
        self._execute(INSERT, (payload,))

    def chunk_append(self, chunk: list[bytes]) -> None:
        insert_all(self._connection, chunk)


def sqlite_back(directory: str) -> Iterator[bytes]:
    for (data,) in connect(directory, "OFF").execute("SELECT data FROM records ORDER BY id"):
        yield data


# -- persist-queue -----------------------------------------------------------------------------------------------------


class FileQueueStore(OtherStore):
    def __init__(self, directory: str, chunksize: int = 100) -> None:
        super().__init__(together=False)
        self._queue = persistqueue.Queue(directory, chunksize=chunksize, tempdir=directory)
        self.append = self._queue.put


def file_queue_back(directory: str) -> Iterator[bytes]:
    queue = persistqueue.Queue(directory, tempdir=directory)
    while queue.qsize():
        yield queue.get_nowait()


class SqlQueueStore(OtherStore):
    def __init__(self, directory: str, synchronous: str) -> None:
        super().__init__(together=False)
        self._queue = persistqueue.SQLiteQueue(directory, auto_commit=True)
        if synchronous == "FULL":
            confirm(self._queue._putter, synchronous)
        else:
            ask(self._queue._putter, synchronous)
        self.append = self._queue.put


def sql_queue_back(directory: str) -> Iterator[bytes]:
    for row in persistqueue.SQLiteQueue(directory).queue():
        yield row["data"]


# -- litequeue ---------------------------------------------------------------------------------------------------------


class LiteQueueStore(OtherStore):
    """Its values are declared as text; bytes are stored as they are, which is what costs it least."""

    def __init__(self, directory: str, synchronous: str, *, together: bool = False) -> None:
        super().__init__(together=together)
        self._queue = _litequeue(directory)
        ask(self._queue.conn, synchronous)
        self.append = self._queue.put

    def chunk_append(self, chunk: list[bytes]) -> None:
        put = self._queue.put
        with self._queue.transaction(mode="IMMEDIATE"):
            for payload in chunk:
                put(payload)


def litequeue_back(directory: str) -> Iterator[bytes]:
    queue = _litequeue(directory)
    for (data,) in queue.conn.execute("SELECT data FROM [Queue] ORDER BY rowid"):
        yield data


def _litequeue(directory: str) -> Any:
    return litequeue.LiteQueue(str(Path(directory) / "queue.db"))


# -- diskcache ---------------------------------------------------------------------------------------------------------


class DequeStore(OtherStore):
    def __init__(self, directory: str, synchronous: str, *, together: bool = False) -> None:
        super().__init__(together=together)
        number = SYNCHRONOUS.index(synchronous)
        cache = diskcache.Cache(directory, eviction_policy="none", sqlite_synchronous=number)
        confirm(cache._con, synchronous)
        self._deque = diskcache.Deque.fromcache(cache)
        self.append = self._deque.append

    def chunk_append(self, chunk: list[bytes]) -> None:
        append = self.append
        with self._deque.transact():
            for payload in chunk:
                append(payload)


def deque_back(directory: str) -> Iterator[bytes]:
    yield from diskcache.Deque.fromcache(diskcache.Cache(directory, eviction_policy="none"))
