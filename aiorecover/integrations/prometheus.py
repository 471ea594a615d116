"""For Prometheus: the statistics of the producers in this process, read when they are scraped.

>>> watch(producer)  # doctest: +SKIP
>>> prometheus_client.start_http_server(9100)  # doctest: +SKIP
"""

import weakref
from collections.abc import Iterator

from aiorecover.extras import extra

with extra("metrics"):
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector

from aiorecover.integrations.metrics import TABLE, WAL_PATH, Kind, Metric, Watchable, read

__all__ = ["watch"]

_collectors: "weakref.WeakKeyDictionary[CollectorRegistry, ProducerCollector]" = weakref.WeakKeyDictionary()


def watch(producer: Watchable, registry: CollectorRegistry = REGISTRY) -> None:
    """Export a producer until it is stopped; its ``wal_path`` is a label. Costs nothing but at a scrape.

    Raises:
        ValueError: the registry has metrics of these names from elsewhere.

    """
    collector = _collectors.get(registry)
    if collector is None:
        collector = ProducerCollector()
        registry.register(collector)
        _collectors[registry] = collector
    collector.producers.add(producer)


class ProducerCollector(Collector):
    """The producers of one registry, which asks for their numbers at a scrape."""

    def __init__(self) -> None:
        self.producers: weakref.WeakSet[Watchable] = weakref.WeakSet()

    def describe(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield the metrics without samples."""
        return map(_family, TABLE)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield the metrics with the numbers of this moment."""
        found = read(self.producers)
        for metric in TABLE:
            family = _family(metric)
            for labels, statistics in found:
                for more, value in metric.values(statistics):
                    family.add_metric([*labels.values(), *more.values()], value)
            yield family


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    labels = [WAL_PATH] if metric.label is None else [WAL_PATH, metric.label]
    return kind(metric.prometheus_name, metric.help, labels=labels)
