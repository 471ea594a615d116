"""For tests of your own: a Kafka cluster without Java or Docker, and a disk that can lose its power.

``MockCluster`` runs inside this process. ``MockClusterProcess`` runs in a process of its own, for tests that
kill the process under test. Both need ``pip install 'aiorecover[demo]'``: importing this package needs nothing,
starting a cluster needs confluent-kafka. :mod:`aiorecover.testing.mock_cluster` lists what
the mock does not do.

``MemoryDisk`` is a whole ``wal_dir`` in memory, with images of what the death of the process and a power cut leave of
it; :mod:`aiorecover.testing.memory_disk` says what survives what. It needs Linux.

``CrashingProcess`` is a program that is killed and started again, ``read_topic`` returns what is in Kafka. pytest has
all of it as fixtures: :mod:`aiorecover.testing.plugin`.
"""

from aiorecover.testing.crashing_process import CrashingProcess
from aiorecover.testing.memory_disk import MemoryDisk
from aiorecover.testing.mock_cluster import DISCONNECT, ApiKey, MockCluster, MockRequest
from aiorecover.testing.mock_cluster_process import MockClusterProcess
from aiorecover.testing.reading import read_topic

__all__ = [
    "DISCONNECT",
    "ApiKey",
    "CrashingProcess",
    "MemoryDisk",
    "MockCluster",
    "MockClusterProcess",
    "MockRequest",
    "read_topic",
]
