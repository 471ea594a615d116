"""For OpenTelemetry: the statistics of the producers in this process, as observable instruments.

>>> watch(producer)  # doctest: +SKIP
"""

import time
import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from aiorecover.extras import extra

with extra("metrics"):
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter, get_meter_provider

from aiorecover import Statistics, __version__
from aiorecover.integrations.metrics import TABLE, Kind, Metric, Watchable, read

__all__ = ["watch"]

SHARED_S: Final = 0.1  # the instruments of one collection share one look at the producers

_watched: "weakref.WeakKeyDictionary[MeterProvider, Watched]" = weakref.WeakKeyDictionary()


def watch(producer: Watchable, meter_provider: MeterProvider | None = None) -> None:
    """Observe a producer until it is stopped; its ``wal_path`` is an attribute. Costs nothing but at a collection.

    ``meter_provider``: None for the global one.
    """
    provider = get_meter_provider() if meter_provider is None else meter_provider
    watched = _watched.get(provider)
    if watched is None:
        watched = _watched[provider] = Watched()
        meter = get_meter("aiorecover", __version__, provider)
        for metric in TABLE:
            create = meter.create_observable_counter if metric.kind is Kind.COUNTER else meter.create_observable_gauge
            create(metric.name, [partial(watched.observe, metric)], metric.unit, metric.help)
    watched.producers.add(producer)


class Watched:
    """The producers of one provider, as its instruments observe them."""

    def __init__(self) -> None:
        self.producers: weakref.WeakSet[Watchable] = weakref.WeakSet()
        self._read: list[tuple[dict[str, str], Statistics]] = []
        self._read_at = float("-inf")

    def observe(self, metric: Metric, _options: CallbackOptions) -> Iterable[Observation]:
        """Return the observations of an instrument; called in a thread of the exporter's."""
        now = time.monotonic()
        if now - self._read_at > SHARED_S:
            self._read, self._read_at = read(self.producers), now
        return list(self._observations(metric))

    def _observations(self, metric: Metric) -> Iterator[Observation]:
        for labels, statistics in self._read:
            for more, value in metric.values(statistics):
                yield Observation(value, {**labels, **more})
