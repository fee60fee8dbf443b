"""The record's state for Prometheus: what waits in every spool of this data directory.

Read from the files, so that whichever worker is asked tells the same about all of them.
"""

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from . import spool_file
from .sizes import spool_bytes


class Gauge(NamedTuple):
    name: str
    help: str
    label: str = ""


BACKLOG: Final = Gauge("bridge_record_backlog", "Records that wait for the database.", "`spool`")
OLDEST: Final = Gauge(
    "bridge_record_oldest_seconds", "Age of the oldest record that waits.", "`spool`"
)
SET_ASIDE: Final = Gauge(
    "bridge_record_set_aside", "Requests whose record the database refuses.", "`spool`"
)
BYTES: Final = Gauge("bridge_record_spool_bytes", "Bytes of all spool files.")
SPOOL: Final = Gauge("bridge_record_spool_up", "1: the asked worker can write its spool.")
DATABASE: Final = Gauge("bridge_record_database_up", "1: the asked worker's drainer reaches it.")
LOST: Final = Gauge("bridge_record_lost_checkpoints", "Checkpoints that a full disk cost.")
GAUGES: Final = (BACKLOG, OLDEST, SET_ASIDE, BYTES, SPOOL, DATABASE, LOST)


def prometheus(directory: Path, state: dict[str, Any]) -> str:
    """Text format 0.0.4; ``state`` is what the asked worker's recorder says of itself."""
    found = dict(_spools(directory))
    now = time.time()
    lines = [
        *_lines(BACKLOG, {name: one.records for name, one in found.items()}),
        *_lines(OLDEST, {name: max(0.0, now - (b.oldest or now)) for name, b in found.items()}),
        *_lines(SET_ASIDE, {name: one.set_aside for name, one in found.items()}),
        *_lines(BYTES, {"": spool_bytes(directory)}),
        *_lines(SPOOL, {"": int(state["spool"])}),
        *_lines(DATABASE, {"": int(state["database"])}),
        *_lines(LOST, {"": state.get("lost_chunks", 0)}),
    ]
    return "\n".join(lines) + "\n"


def _spools(directory: Path) -> Iterator[tuple[str, spool_file.Backlog]]:
    for path in sorted(directory.glob("spool-*.sqlite3")):
        with contextlib.suppress(sqlite3.Error), contextlib.closing(spool_file.connect(path)) as it:
            yield path.stem, spool_file.backlog(it)


def _lines(gauge: Gauge, values: dict[str, float]) -> Iterator[str]:
    yield f"# HELP {gauge.name} {gauge.help}"
    yield f"# TYPE {gauge.name} gauge"
    for spool, value in values.items():
        label = f'{{spool="{spool}"}}' if spool else ""
        yield f"{gauge.name}{label} {round(value, 3)}"
