"""Brokers, and a way to them, that fail while the publishing process is killed, as a seed says."""

import random
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self

from tests.support.broker import Cluster
from tests.support.detour import Detour
from tests.support.node import Node

__all__ = ["HARD", "ONE_AT_A_TIME", "BrokerFaults", "LateNetwork"]

_LONGEST_PEACE_S = 4.0
_LONGEST_PAUSE_S = 4.0  # above the brokers' session time-out: leaders move
_SHORTEST_PAUSE_S = 0.05
_LONGEST_OUTAGE_S = 2.0
_LOOK_S = 0.1

ONE_AT_A_TIME: Final = {"freeze": 1.0, "kill": 1.0}
"""One node after the other is paused and resumed, or killed and restarted: kinds of faults, with their weights."""
HARD: Final = {"freeze": 6.0, "kill": 3.0, "kill all": 0.5, "roll": 0.5}
"""Beside these: all nodes killed at once and restarted, and all restarted one by one."""


class _Faults(ABC):
    """Something that fails again and again, in a thread, until it is left."""

    def __init__(self, seed: str, longest_peace_s: float) -> None:
        self.done: Counter[str] = Counter()
        """How often each kind of fault was done."""
        self._rng = random.Random(seed)
        self._longest_peace_s = longest_peace_s
        self._over = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"faults {seed}", daemon=True)

    def __str__(self) -> str:
        return " ".join(f"{kind.replace(' ', '_')}={times}" for kind, times in sorted(self.done.items()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._mend()
        if self._failure is not None and error is None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._over.wait(self._rng.uniform(0.0, self._longest_peace_s)):
                self._one()
        except Exception as error:  # noqa: BLE001 - handed on by __exit__
            self._failure = error

    @abstractmethod
    def _one(self) -> None:
        """One fault, from its beginning to its end."""

    @abstractmethod
    def _mend(self) -> None:
        """Make all whole again."""


class LateNetwork(_Faults):
    """Holds back what is on its way for a while: of who is killed meanwhile, it arrives under the next one.

    How often that happens is chance, but that it happens is not: the network is held until it has happened once.
    """

    def __init__(self, detour: Detour, seed: int, longest_peace_s: float = _LONGEST_PEACE_S) -> None:
        super().__init__(f"network {seed}", longest_peace_s)
        self._detour = detour

    def _one(self) -> None:
        self._detour.hold()
        self._over.wait(self._rng.uniform(_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S))
        while not self.done["late"] and not self._detour.late() and not self._over.wait(_LOOK_S):
            self._detour.hold()  # who has connected meanwhile, too
        self.done["late"] += self._detour.release() > 0  # else nothing was on its way

    def _mend(self) -> None:
        self._detour.release()


class BrokerFaults(_Faults):
    """Brokers that fail."""

    def __init__(
        self,
        cluster: Cluster,
        seed: int,
        kinds: Mapping[str, float] = ONE_AT_A_TIME,
        longest_peace_s: float = _LONGEST_PEACE_S,
    ) -> None:
        super().__init__(f"faults {seed}", longest_peace_s)
        self._cluster = cluster
        self._kinds = kinds
        self._deeds: Mapping[str, Callable[[], None]] = {
            "freeze": self._freeze,
            "kill": self._kill,
            "kill all": self._kill_all,
            "roll": self._roll,
        }

    def _one(self) -> None:
        kind = self._rng.choices([*self._kinds], [*self._kinds.values()])[0]
        self.done[kind] += 1
        self._deeds[kind]()

    def _mend(self) -> None:
        self._cluster.heal()

    def _freeze(self) -> None:
        node = self._rng.choice(self._cluster.nodes)
        node.pause()
        self._over.wait(self._rng.uniform(_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S))
        node.resume()

    def _kill(self) -> None:
        """Leader of some lanes: so are all nodes."""
        self._restart(self._rng.choice(self._cluster.nodes))

    def _kill_all(self) -> None:
        for node in self._cluster.nodes:
            node.kill()
        self._over.wait(self._rng.uniform(0.0, _LONGEST_OUTAGE_S))
        for node in self._cluster.nodes:
            node.start()
        self._cluster.wait_ready()

    def _roll(self) -> None:
        for node in self._cluster.nodes:
            self._restart(node)

    def _restart(self, node: Node) -> None:
        node.kill()
        self._over.wait(self._rng.uniform(0.0, _LONGEST_OUTAGE_S))
        node.start()
        self._cluster.wait_ready()
