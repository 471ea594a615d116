"""A Kafka cluster to test against, without Java or Docker; needs ``pip install 'aiorecover[demo]'``.

``MockCluster`` runs inside this process. ``MockClusterProcess`` runs in a process of its own, for tests that
kill the process under test. Importing this package needs nothing; starting a cluster needs confluent-kafka.

What the mock does not do is listed in :mod:`aiorecover.testing.mock_cluster`.
"""

from aiorecover.testing.mock_cluster import DISCONNECT, ApiKey, MockCluster, MockRequest
from aiorecover.testing.mock_cluster_process import MockClusterProcess

__all__ = ["DISCONNECT", "ApiKey", "MockCluster", "MockClusterProcess", "MockRequest"]
