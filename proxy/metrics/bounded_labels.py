"""Subclasses of prometheus_client's metric classes that limit label values.

Clients and upstreams choose some label values, such as the name of a model. Without limits they
could fill the memory of the gateway and of Prometheus.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, Self

import prometheus_client
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

MAX_LABEL_SETS: Final = 1_000
"""The maximum number of label sets of one metric in one worker. Further ones are counted under the
label value ``other``."""
MAX_LABEL_CHARS: Final = 100
OTHER: Final = "other"
UNSAFE: Final = re.compile(r"[^\x20-\x7e]")


class BoundedLabels(MetricWrapperBase):
    """Limit the length, the characters and the number of label values of a metric."""

    def __init__(
        self, name: str, documentation: str, labelnames: Sequence[str] = (), **options: Any
    ) -> None:
        # No registry: ``definitions.METRICS`` lists the metrics, and the default registry would
        # add metrics of the Python process.
        super().__init__(name, documentation, labelnames, registry=None, **options)
        self.full_name = name
        self.label_names = tuple(labelnames)
        self._children: dict[tuple[object, ...], Self] = {}

    @property
    def family(self) -> Metric:
        """Return name (without a counter's ``_total``), type and help text, but no samples."""
        [family] = self.describe()
        return family

    def labels(self, *labelvalues: object, **labelkwargs: object) -> Self:
        values = labelvalues or tuple(labelkwargs[name] for name in self.label_names)
        child = self._children.get(values)
        return self._add_child(values) if child is None else child

    def _add_child(self, values: tuple[object, ...]) -> Self:
        safe = tuple(UNSAFE.sub("?", str(value)[:MAX_LABEL_CHARS]) for value in values)
        if safe not in self._children and len(self._children) >= MAX_LABEL_SETS:
            safe = (OTHER,) * len(safe)
        return self._children.setdefault(safe, super().labels(*safe))


class Counter(BoundedLabels, prometheus_client.Counter):
    pass


class Gauge(BoundedLabels, prometheus_client.Gauge):
    pass


class Histogram(BoundedLabels, prometheus_client.Histogram):
    pass
