"""A proof that is a single run on real brokers: what those have in common."""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, TypeVar

from tests.prove.rounds import chosen
from tests.support.broker import BrokerUnavailableError, Cluster
from tests.support.jars import JarsError

__all__ = ["Judged", "prove_once"]

_Brokers = TypeVar("_Brokers", bound=Cluster)


class Judged(NamedTuple):
    """The verdict over a run."""

    ok: bool
    told: str
    """In figures."""
    wrong: Sequence[str] = ()
    """Faults, and events that were too few or too many to prove anything."""


def prove_once(
    name: str,
    brokers: Callable[[], AbstractContextManager[_Brokers]],
    seed: int | None,
    run: Callable[[_Brokers, Path, int], Judged],
) -> int:
    """Give ``run`` brokers, a directory and a seed; the exit status. The directory stays if anything was wrong.

    ``seed``: None: a random one.
    """
    began, seed = time.monotonic(), chosen(seed)
    directory = Path(tempfile.mkdtemp(prefix=f"aiorecover-{name}-"))
    try:
        with brokers() as cluster:
            print(f"broker: {cluster.description} seed={seed}", flush=True)
            judged = run(cluster, directory, seed)
    except (BrokerUnavailableError, JarsError) as error:
        print(f"broker: {error}", file=sys.stderr)
        shutil.rmtree(directory)
        return 2
    except AssertionError as error:
        print(f"NOT OK: seed={seed} {error}\nkept: {directory}", flush=True)
        return 1
    proved = judged.ok and not judged.wrong
    seconds = time.monotonic() - began
    print(f"{'proved' if proved else 'NOT OK'}: seed={seed} {judged.told} seconds={seconds:.0f}", flush=True)
    if proved:
        shutil.rmtree(directory)
        return 0
    print("\n".join([*judged.wrong, f"kept: {directory}"]), flush=True)
    return 1
