"""Writes of sinks that will never have a manifest: somebody says that none of their attempts counts.

The driver of a ``save()`` was killed, a ``save()`` with a ``job_id`` failed and is not run again, or the checkpoint of
a stream is gone: of such a write there are records, and nobody will say which of them count. `land` would hold them for
ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from aiorecover.errors import ConfigError
from aiorecover.spark.decided import decided_among
from aiorecover.spark.handed_over import shown
from aiorecover.spark.sink import publish_parts
from aiorecover.spark.sink_manifest import Write, empty_manifest_of
from aiorecover.spark.sink_plan import plan
from aiorecover.spark.topics_there import check_topics

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["give_up_writes", "named_writes"]


def give_up_writes(
    writes: Sequence[str] = (),
    *,
    job_ids: Sequence[str] = (),
    bootstrap_servers: str,
    manifest_topic: str,
    options: Mapping[str, str] | None = None,
) -> list[str]:
    """Publish for each write a manifest that names no attempt: what the write has published are leftovers from then on.

    The names of those that were given up: not of one that has its manifest already, as far as the end of the topic
    tells.

    Only for what has ended without a manifest and will not be run again: **rows of a write that is given up are never
    landed**, also if it is done again later, or its driver was only slow. A write that has a manifest stays as it is.
    When this returns, Kafka has all of them.

    ``writes``: their names, as in the header ``aiorecover-write`` (`undecided_writes`). ``job_ids``: the writes that a
    ``save()`` with this option ``job_id`` makes. ``options``: those of ``format("aiorecover")`` that it takes to reach
    Kafka: ``producer.security_protocol``, ..., and ``timeout_ms``.

    Raises:
        ConfigError: nothing is named, or what no write is called, or an option is wrong, or the topic is not there, or
            has records and no manifests, or refuses the manifest.
        DeliveryError: Kafka has not acknowledged all of it within ``timeout_ms``; do it again.

    """
    names = named_writes(writes, job_ids)
    if not names:
        raise ConfigError("name a write that is to be given up, or the job_id of one")
    parts = {name: empty_manifest_of(name) for name in names}
    told = {**(options or {}), "bootstrap_servers": bootstrap_servers, "manifest_topic": manifest_topic}
    made = plan(told, StructType().add("topic", "string").add("value", "string"))
    check_topics(made)
    decided = decided_among(made, parts.keys())
    given_up = [name for name in names if name not in decided]
    if given_up:
        publish_parts(made, [part for name in given_up for part in parts[name]])
    return given_up


def named_writes(writes: Sequence[str], job_ids: Sequence[str]) -> list[str]:
    """The names of all of them, each once.

    Raises:
        ConfigError: a text was given for a list of them.

    """
    _check_list("writes", writes)
    _check_list("job_ids", job_ids)
    return [*dict.fromkeys([*writes, *(Write(job_id, 0).name for job_id in job_ids)])]


def _check_list(name: str, given: object) -> None:
    """A text would be taken for its characters."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise ConfigError(f"{name} is a list: {shown(name, given)}")
