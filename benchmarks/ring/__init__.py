"""The ring alone, and beside Python's other durable queues, at equal durability. No broker, but for `ring_delivery`.

A store is asked for no more than its level says, and at least for that. What each of them does there:

Level 1, "process": a record survives the death of the process once the call returned (it is in the page cache).
    aiorecover ring     `Ring.append`; nothing is flushed
    aiorecover publish  ``fsync="never"``
    SQLite              WAL, ``synchronous=OFF``, one INSERT a transaction
    persist-queue       `SQLiteQueue` with ``synchronous=OFF`` set on its connection; `Queue` (files) as it comes, which
                        flushes a file of 100 records when it is full, but neither the file that says where head and
                        tail are nor the directory: a power cut may still cut the queue back, so it is at this level
                        only. And `Queue` with ``chunksize=100_000``: practically without those flushes
    litequeue           WAL, ``synchronous=OFF`` set on its connection
    diskcache           `Deque` over a `Cache` with ``sqlite_synchronous=0``

Level 2, "interval": a record survives a power cut after a bounded time.
    aiorecover          fdatasync every second beside the appends; publish: ``fsync="interval"``, the default
    the others          WAL, ``synchronous=NORMAL``: flushed at each checkpoint of the database, that is after 1,000
                        pages (4 MB) of log. That bounds how much is at risk and not how long: what is stored last
                        before a quiet hour is at risk for that hour. They are asked for less than aiorecover here.
                        litequeue and diskcache come that way; for persist-queue's `SQLiteQueue` it is set

Level 3, "always": every record survives a power cut once the call returned.
    aiorecover ring     `Ring.append` and one fdatasync, in the keeper's thread as in the producer
    aiorecover publish  ``fsync="always"``
    the others          WAL, ``synchronous=FULL``: one fsync of the log for each transaction. persist-queue's
                        `SQLiteQueue` comes that way; litequeue: set on its connection; diskcache:
                        ``sqlite_synchronous=2``

The others are called directly, from the one thread of a process that does nothing else: in a service with an event loop
they would have to be called in another thread, which costs them more than is shown here. Where several records fit one
transaction through the interface that a store offers (SQLite, litequeue's and diskcache's ``transact…``), that is a row
of its own, "100 a transaction": the caller has to have 100 records at once then, and none of them is safe before the
last. persist-queue commits each ``put`` by itself, whatever ``auto_commit`` says.

After every run the process is killed with SIGKILL, and another one reads everything back and compares number, order and
content. What SQLite was asked for is read back from it (``PRAGMA synchronous``, ``PRAGMA journal_mode``). That a flush
reaches the disk is the file system's affair; the report shows what it costs alone.
"""
