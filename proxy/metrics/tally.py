"""Sums in memory: plain dictionaries, added to by one thread at a time."""

import bisect
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Final

from .catalogue import BY_NAME, Metric

Labels = tuple[str, ...]
Series = dict[Labels, list[float]]
"""A counter or gauge is one number; a histogram its buckets (each its own), then sum and count."""

MOST_SERIES: Final = 1_000
"""Of one metric: a label that somebody else chooses (a model's name) must not fill the memory."""
LONGEST_LABEL: Final = 100
OTHER: Final = "other"
UNSAFE: Final = re.compile(r"[^\x20-\x7e]")


class Tally:
    """Every series of one worker, or the sum over several."""

    def __init__(self) -> None:
        self.series: dict[str, Series] = {}

    def add(self, metric: Metric, labels: Labels = (), amount: float = 1) -> None:
        self._values(metric, labels)[0] += amount

    def observe(self, metric: Metric, seconds: float, labels: Labels = ()) -> None:
        """``seconds`` fall into the first bucket whose bound they do not pass."""
        values = self._values(metric, labels)
        values[bisect.bisect_left(metric.buckets, seconds)] += 1
        values[-2] += seconds
        values[-1] += 1

    def merge(self, other: Mapping[str, Series]) -> None:
        """Add what another worker has; what this version does not know is passed over."""
        for name, series in other.items():
            metric = BY_NAME.get(name)
            for labels, values in series.items() if metric else ():
                if metric and len(labels) == len(metric.labels) and len(values) == _width(metric):
                    mine = self._values(metric, labels)
                    mine[:] = map(sum, zip(mine, values, strict=True))

    def _values(self, metric: Metric, labels: Labels) -> list[float]:
        series = self.series.setdefault(metric.name, {})
        found = series.get(labels)
        if found is None:
            labels = tuple(UNSAFE.sub("?", text[:LONGEST_LABEL]) for text in labels)
            if len(series) >= MOST_SERIES:
                labels = (OTHER,) * len(labels)
            found = series.setdefault(labels, [0.0] * _width(metric))
        return found


def _width(metric: Metric) -> int:
    return len(metric.buckets) + 3 if metric.kind == "histogram" else 1


def exposition(series: Mapping[str, Series]) -> Iterator[str]:
    """Lines of Prometheus' text format 0.0.4; a metric nobody has touched is told as well."""
    for metric in BY_NAME.values():
        yield f"# HELP {metric.name} {metric.help}"
        yield f"# TYPE {metric.name} {metric.kind}"
        for labels, values in sorted(series.get(metric.name, {}).items()):
            told = [
                f'{name}="{_escaped(text)}"'
                for name, text in zip(metric.labels, labels, strict=True)
            ]
            if metric.kind == "histogram":
                yield from _histogram(metric, told, values)
            else:
                yield f"{metric.name}{_braces(told)} {_number(values[0])}"


def _histogram(metric: Metric, told: list[str], values: list[float]) -> Iterator[str]:
    bounds = [*map(_number, metric.buckets), "+Inf"]
    upto = itertools.accumulate(values[:-2])
    for bound, count in zip(bounds, upto, strict=True):
        upto_bound = _braces([*told, f'le="{bound}"'])
        yield f"{metric.name}_bucket{upto_bound} {_number(count)}"
    yield f"{metric.name}_sum{_braces(told)} {_number(values[-2])}"
    yield f"{metric.name}_count{_braces(told)} {_number(values[-1])}"


def _braces(told: list[str]) -> str:
    return "{" + ",".join(told) + "}" if told else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(round(value, 9))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
