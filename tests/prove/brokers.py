"""The brokers that a proof in rounds stands on."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from tests.support.broker import BrokerUnavailableError, Cluster
from tests.support.jars import JarsError

__all__ = ["on_brokers"]

_Brokers = TypeVar("_Brokers", bound=Cluster)


def on_brokers(
    brokers: Callable[[], AbstractContextManager[_Brokers]], prove: Callable[[_Brokers], int], *, faults: bool = False
) -> int:
    """Say which ones they are, and ``prove`` it there; its exit status, or 2 where there are none.

    ``faults``: it has to be possible to kill them, as for the option of that name.
    """
    try:
        with brokers() as cluster:
            print(f"broker: {cluster.description}", flush=True)
            if faults and not cluster.can_kill:
                print("--faults needs brokers that can be killed: unset the cluster, install java", file=sys.stderr)
                return 2
            return prove(cluster)
    except (BrokerUnavailableError, JarsError) as error:
        print(f"broker: {error}", file=sys.stderr)
        return 2
