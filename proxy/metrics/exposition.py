"""Build the response of /metrics: the metrics of all workers and of further collectors."""

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from .definitions import METRICS
from .multiprocess import mark_dead_workers, worker

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4


class AllWorkers(Collector):
    """Collect all metrics in the order of their definition, including those without a value yet."""

    def collect(self) -> Iterator[Metric]:
        shared: dict[str, Metric] = {}
        if worker.directory is not None:
            mark_dead_workers(worker.directory)
            collector = MultiProcessCollector(None, str(worker.directory))
            shared = {family.name: family for family in collector.collect()}
        for metric in METRICS:
            for own in metric.collect():
                yield shared.get(own.name, own)


def exposition(*collectors: Collector) -> bytes:
    """Return the metrics of all workers and these collectors in Prometheus' text format 0.0.4."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in (AllWorkers(), *collectors):
        registry.register(collector)
    return generate_latest(registry)
