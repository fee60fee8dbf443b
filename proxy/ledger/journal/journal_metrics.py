"""Prometheus metrics of the journals: records that are not in the database yet, and sizes.

Each worker process reports all journals of the data directory. It reads the other workers' journals
from their watermark files and its own journal from memory, which is exact.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from .reader import Backlog, read_watermark


class Gauge(NamedTuple):
    name: str
    help: str
    label_names: tuple[str, ...] = ()


BACKLOG: Final = Gauge("bridge_record_backlog", "Records that wait for the database.", ("spool",))
OLDEST: Final = Gauge(
    "bridge_record_oldest_seconds", "Age of the oldest record that waits.", ("spool",)
)
SET_ASIDE: Final = Gauge(
    "bridge_record_set_aside", "Requests whose record the database refuses.", ("spool",)
)
BYTES: Final = Gauge("bridge_record_spool_bytes", "Bytes of all journals.")
JOURNAL: Final = Gauge("bridge_record_spool_up", "1: the scraped worker can write its journal.")
DATABASE: Final = Gauge("bridge_record_database_up", "1: the scraped worker's drainer reaches it.")
LOST: Final = Gauge("bridge_record_lost_checkpoints", "Checkpoints lost because the disk was full.")
UNDERIVED: Final = Gauge(
    "bridge_record_underived",
    "Requests that the scraped worker recorded without their outcomes or search index, because of "
    "an error.",
)
GAUGES: Final = (BACKLOG, OLDEST, SET_ASIDE, BYTES, JOURNAL, DATABASE, LOST, UNDERIVED)


class RecordCollector(Collector):
    """Collects the gauges of all journals when Prometheus scrapes a worker."""

    def __init__(self, directory: Path, state: dict[str, Any]) -> None:
        """Collect from ``state``, which is ``Recorder.state()`` of the scraped worker."""
        self._directory = directory
        self._state = state

    def collect(self) -> Iterator[GaugeMetricFamily]:
        state, now = self._state, time.time()
        found: dict[str, Backlog] = {}
        for path in sorted(self._directory.glob("journal-*/")):
            if mark := read_watermark(path):
                found[path.name] = Backlog(mark["records"], mark["oldest"], mark["set_aside"])
        if state.get("name"):
            oldest = now - state["oldest_s"] if state["oldest_s"] else None
            found[state["name"]] = Backlog(state["backlog"], oldest, state["set_aside"])
        yield _family(BACKLOG, {name: one.records for name, one in found.items()})
        ages = {name: max(0.0, now - (one.oldest or now)) for name, one in found.items()}
        yield _family(OLDEST, ages)
        yield _family(SET_ASIDE, {name: one.set_aside for name, one in found.items()})
        yield _family(BYTES, {"": journal_bytes(self._directory)})
        yield _family(JOURNAL, {"": int(state["journal"])})
        yield _family(DATABASE, {"": int(state["database"])})
        yield _family(LOST, {"": state.get("lost_chunks", 0)})
        yield _family(UNDERIVED, {"": state.get("underived", 0)})


def _family(gauge: Gauge, values: dict[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(gauge.name, gauge.help, labels=gauge.label_names)
    for journal, value in values.items():
        family.add_metric([journal] if gauge.label_names else [], round(value, 3))
    return family


def journal_bytes(directory: Path) -> int:
    """Return the size of all journal files in this data directory, in bytes.

    It includes the reserve files and the records in quarantine.
    """
    total = 0
    for path in directory.glob("journal-*/**/*"):
        with contextlib.suppress(FileNotFoundError):  # another thread has just removed the file
            total += path.stat().st_size
    return total
