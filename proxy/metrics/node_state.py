"""Prometheus gauges of a node: its version, stores, disk, cooldowns, budgets and processes.

The scraped worker reports them as it sees them. The figures of the processes are those of all
workers of the node.
"""

import platform
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from typing import Final, NamedTuple

from prometheus_client import ProcessCollector
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.conf import conf
from proxy.counters.backends import is_redis_unavailable
from proxy.ledger.journal.journal_metrics import Gauge
from proxy.live.cooldown_registry import cooling
from proxy.money import NANO

from .multiprocess import worker_processes

BUILD: Final = Gauge(
    "bridge_build_info", "Always 1; the labels are the versions.", ("version", "python")
)
DEGRADED: Final = Gauge("bridge_degraded", "Faults that /readyz of the scraped worker lists.")
REDIS: Final = Gauge(
    "bridge_redis_up",
    "1: the scraped worker uses Redis. 0: it counts for its machine alone. Absent without Redis.",
)
DISK_FREE: Final = Gauge(
    "bridge_data_free_bytes", "Free bytes of the file system that has the data directory."
)
COOLDOWNS: Final = Gauge(
    "bridge_upstream_cooldowns",
    "Models of an upstream that the scraped worker tries last, because they failed repeatedly.",
    ("upstream",),
)
BUDGET_LIMIT: Final = Gauge(
    "bridge_budget_limit_usd", "The budget of a team in its period.", ("team", "period")
)
BUDGET_LEFT: Final = Gauge(
    "bridge_budget_remaining_usd",
    "What a team can still spend in the current period: the budget, less the cost of its requests "
    "and what running requests have reserved.",
    ("team", "period"),
)
NODE_GAUGES: Final = (BUILD, DEGRADED, REDIS, DISK_FREE, COOLDOWNS, BUDGET_LIMIT, BUDGET_LEFT)

MAX_BUDGETS: Final = 1_000
"""At most this many budgets are reported: a scrape reads the counter of each."""

Labels = tuple[str, ...]


class TeamBudget(NamedTuple):
    """The current period of a team's budget. Amounts are in nano-dollars."""

    team: str
    period: str
    limit: int
    remaining: int


class NodeCollector(Collector):
    """Collects the gauges of the node when Prometheus scrapes a worker."""

    def __init__(self, faults: Collection[str], budgets: Collection[TeamBudget]) -> None:
        """Report ``faults`` as their number; ``budgets`` may have several rows for a period."""
        self._faults = faults
        self._budgets = sorted(budgets, key=lambda one: one.remaining / max(1, one.limit))

    def collect(self) -> Iterator[Metric]:
        build = (version("messages-bridge"), platform.python_version())
        yield _family(BUILD, {build: 1})
        yield _family(DEGRADED, {(): len(self._faults)})
        if conf.redis_url:
            yield _family(REDIS, {(): int(not is_redis_unavailable())})
        yield _family(DISK_FREE, {(): shutil.disk_usage(conf.data_dir).free})
        cooldowns = Counter(one.upstream for one in cooling())
        yield _family(COOLDOWNS, {(name,): number for name, number in cooldowns.items()})
        yield _family(BUDGET_LIMIT, self._tightest(lambda budget: budget.limit))
        yield _family(BUDGET_LEFT, self._tightest(lambda budget: budget.remaining))
        yield from _process_figures()

    def _tightest(self, amount: Callable[[TeamBudget], int]) -> dict[Labels, float]:
        """Return the amount in dollars of the tightest budget of each team and period."""
        found: dict[Labels, float] = {}
        for budget in self._budgets:
            found.setdefault((budget.team, budget.period), amount(budget) / NANO)
        return found


def _family(gauge: Gauge, values: Mapping[Labels, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(gauge.name, gauge.help, labels=gauge.label_names)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _process_figures() -> Iterator[Metric]:
    """Yield memory, CPU time, files and start time of each worker, with the label ``worker``."""
    families: dict[str, Metric] = {}
    for number, pid in worker_processes().items():
        for family in ProcessCollector(pid=partial(str, pid), registry=None).collect():
            merged = families.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            for sample in family.samples:
                merged.add_sample(sample.name, {"worker": str(number)}, sample.value)
    yield from families.values()
