"""Build the tables of a run: medians, ratios to peers and floor with their goals, growth."""

import statistics
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.gateway.scenarios import (
    GROWTH,
    PEERS,
    SCENARIOS,
    STARTS,
    TWO_WORKERS,
    Scenario,
)
from benchmarks.gateway.servers import SERVERS

Row = dict[str, Any]
NONE = "-"

COLUMNS = {
    "req/s": "rps",
    "delay p50 ms": "delay_p50",
    "gap p99 ms": "gap_p99",
    "first p50 ms": "first_p50",
    "first p99 ms": "first_p99",
    "CPU ms/req": "cpu_ms_per_request",
    "total CPU ms/req": "whole_cpu_ms_per_request",
    "CPU µs/delta": "cpu_us_per_delta",
    "peak MB": "rss_peak_mb",
    "failed": "failed",
    "unfinished": "unfinished",
}
MEASURED = ["scenario", "server", "figure", *COLUMNS]
COMPARED = ["scenario", "ours", "against", "ratio", "goal", "met"]


class Sheet:
    """One table, printed by rich and saved as Markdown."""

    def __init__(self, title: str, columns: Iterable[str], rows: Iterable[list[str]]) -> None:
        self.title, self.columns, self.rows = title, list(columns), list(rows)

    def print(self, console: Console) -> None:
        table = Table(title=self.title)
        for column in self.columns:
            table.add_column(column)
        for row in self.rows:
            table.add_row(*row)
        if self.rows:
            console.print(table)

    def markdown(self) -> str:
        if not self.rows:
            return ""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"### {self.title}\n\n{table}\n\n"


def sheets(rows: list[Row]) -> list[Sheet]:
    return [
        Sheet(f"Medians, {datetime.now(UTC):%Y-%m-%d}", MEASURED, medians(rows)),
        Sheet("Ratios to peers and floor, and their goals", COMPARED, ratios(rows)),
        Sheet(
            "Growth: 10 times as much costs 10 times to the power of",
            ["what grows", "server", "exponent", "goal"],
            growth(rows),
        ),
        Sheet(
            "S5 cold start to the first answer, S6 idle memory",
            ["server", "cold s", "idle MB"],
            cold(rows),
        ),
    ]


def median(rows: list[Row], scenario: str, server: str, figure: str) -> float | None:
    values = [
        value
        for row in rows
        if row["scenario"] == scenario
        and row["server"] == server
        and isinstance(value := row.get(figure), int | float)
    ]
    return statistics.median(values) if values else None


def medians(rows: list[Row]) -> Iterable[list[str]]:
    for name in ran(rows):
        for server in servers_in(rows):
            figures = [SCENARIOS[name].figure, *COLUMNS.values()]
            cells = [median(rows, name, server, figure) for figure in figures]
            if any(cell is not None for cell in cells):
                yield [name, server, *map(shown, cells)]


def ratios(rows: list[Row]) -> Iterable[list[str]]:
    ours = [name for name in servers_in(rows) if name.startswith("bridge")]
    for name, scenario in {**SCENARIOS, **STARTS}.items():
        for title, column in ((scenario.title, scenario.figure), *scenario.also):
            for server in ours:
                for against, ratio, goal in compared(rows, name, server, column):
                    yield [f"{name} {title}", server, against, *verdict_of(scenario, ratio, goal)]


def compared(
    rows: list[Row], name: str, server: str, column: str
) -> Iterable[tuple[str, float, float]]:
    """Return the servers that a figure is compared with, the ratio, and its goal."""
    scenario = {**SCENARIOS, **STARTS}[name]
    figure = median(rows, name, server, column)
    if figure is None:
        return
    one, two, _ = server.partition("-2w")
    if two:  # one worker is the base for two
        alone = median(rows, name, one, column)
        if alone and scenario.more_is_better:
            yield one, figure / alone, TWO_WORKERS
        return
    if scenario.limit is not None:
        yield "the limit", figure, scenario.limit
    for peer in PEERS:
        theirs = median(rows, name, f"{peer}-{SERVERS[server].via}", column)
        goal = getattr(scenario, peer)
        if theirs and goal is not None:
            yield f"{peer}-{SERVERS[server].via}", figure / theirs, goal


def verdict_of(scenario: Scenario, ratio: float, goal: float) -> list[str]:
    met = ratio >= goal if scenario.more_is_better else ratio <= goal
    sign = "≥" if scenario.more_is_better else "≤"
    return [f"{ratio:.2f}", f"{sign} {goal:.3g}", "yes" if met else "no"]


def growth(rows: list[Row]) -> Iterable[list[str]]:
    """Return the exponent of the CPU growth: 0 is constant, 1 linear, 2 quadratic."""
    for what, (small, big, ratio) in GROWTH.items():
        for server in servers_in(rows):
            figures = [median(rows, name, server, "cpu_ms_per_request") for name in (small, big)]
            if figures[0] and figures[1]:
                yield [what, server, f"{ratio(figures[0], figures[1]):.2f}", "≤ 1.10"]


def cold(rows: list[Row]) -> Iterable[list[str]]:
    for server in servers_in(rows):
        seconds = median(rows, "S5", server, "cold_s")
        if seconds is not None:
            yield [server, f"{seconds:.2f}", shown(median(rows, "S6", server, "idle_mb"))]


def ran(rows: list[Row]) -> list[str]:
    return [name for name in SCENARIOS if any(row["scenario"] == name for row in rows)]


def servers_in(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(str(row["server"]) for row in rows))


def shown(value: float | None) -> str:
    return NONE if value is None else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"


def save_markdown(page: Path, rows: list[Row], command: str) -> None:
    """Write the tables between the markers of a page and leave the rest."""
    begin, end = "<!-- figures: begin -->", "<!-- figures: end -->"
    text = page.read_text(encoding="utf-8") if page.exists() else f"# Performance\n\n{begin}\n{end}"
    before, _, rest = text.partition(begin)
    after = rest.partition(end)[2]
    tables = "".join(sheet.markdown() for sheet in sheets(rows))
    page.write_text(
        f"{before}{begin}\n\nMeasured by `{command}`.\n\n{tables}{end}{after}", encoding="utf-8"
    )
