"""Define the load of each scenario and its goals."""

import math
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Scenario:
    """``options`` are those of load.py; ``figure`` is the column that the ratios compare.

    ``also``: more figures with the same goals. ``servers``: the servers that take part; empty: all.
    """

    title: str
    options: str
    figure: str
    more_is_better: bool = True
    ccr: float | None = None  # goal, as a multiple of claude-code-router
    litellm: float | None = None
    floor: float | None = None
    limit: float | None = None  # goal, as a figure of its own
    also: tuple[tuple[str, str], ...] = ()  # title and column
    servers: tuple[str, ...] = ()


OURS: Final = ("bridge-chat", "bridge-responses", "floor-chat")
"""Scenarios about growth or a limit run without the peers, to save time."""
PACED: Final = (*OURS, "floor-responses", "ccr-chat", "ccr-responses", "litellm-chat")

SCENARIOS: Final = {
    "S1": Scenario(
        "small, non-streaming, requests/s",
        "--model mock-n50-b5-g0-text -c 16 -t 3 --size small",
        "rps",
        ccr=2.5,
        litellm=25,
        floor=0.33,
    ),
    "S2": Scenario(
        "streams of 200 deltas at full speed, deltas/s",
        "--model mock-n200-b5-g0-text --stream -c 16 -t 3 --size small",
        "deltas_per_s",
        ccr=4,
        litellm=40,
        floor=0.50,
    ),
    "S3": Scenario(
        "the same with a 51 KB request and 20 tools, deltas/s",
        "--model mock-n200-b5-g0-text-e20 --stream -c 16 -t 3 --size big",
        "deltas_per_s",
        ccr=6,
        litellm=25,
        floor=0.25,
    ),
    "S4": Scenario(
        "1,000 streams, a delta each 20 ms: CPU µs for each delta",
        "--model mock-n100-b16-g20-text --stream -c 1000 -t 3 --ramp 2 --grace 15 --size small",
        "cpu_us_per_delta",
        more_is_better=False,
        servers=PACED,
        ccr=0.6,
        floor=1.6,
    ),
    "S4b": Scenario(
        "100 such streams: delay of a delta, p50 ms",
        "--model mock-n100-b16-g20-text --stream -c 100 -t 3 --ramp 2 --grace 8 --size small",
        "delay_p50",
        more_is_better=False,
        servers=PACED,
        also=(
            ("first byte, p50 ms", "first_p50"),
            ("first byte, p99 ms", "first_p99"),
            ("gap between deltas, p99 ms", "gap_p99"),
        ),
        ccr=1 / 2,
        litellm=1 / 100,
        floor=2,
    ),
    "M2": Scenario(
        "memory for each open stream, 2 KB body, KB",
        "--model mock-n150-b16-g20-text --stream -c 500 -t 2 --ramp 1.5 --grace 20 --size small",
        "rss_kb_per_stream",
        more_is_better=False,
        servers=OURS,
        limit=40,
    ),
    "M400": Scenario(
        "memory for each open stream, 400 KB body, KB",
        "--model mock-n150-b16-g20-text --stream -c 200 -t 2 --ramp 1.5 --grace 20 --size huge",
        "rss_kb_per_stream",
        more_is_better=False,
        servers=OURS,
        limit=60,
    ),
    "G-events": Scenario(
        "10 times the events of S2: CPU ms for each request",
        "--model mock-n2000-b5-g0-text --stream -c 16 -t 2 --size small",
        "cpu_ms_per_request",
        more_is_better=False,
        servers=OURS,
    ),
    "G-tools12": Scenario(
        "a request of 12 tools: CPU ms for each request",
        "--model mock-n200-b5-g0-text-e20 --stream -c 16 -t 2 --size big-tools12",
        "cpu_ms_per_request",
        more_is_better=False,
        servers=OURS,
    ),
    "G-tools120": Scenario(
        "a request of 120 tools: CPU ms for each request",
        "--model mock-n200-b5-g0-text-e20 --stream -c 16 -t 2 --size big-tools120",
        "cpu_ms_per_request",
        more_is_better=False,
        servers=OURS,
    ),
    "G-history": Scenario(
        "10 times the turns of S3: CPU ms for each request",
        "--model mock-n200-b5-g0-text-e20 --stream -c 16 -t 2 --size big-history10",
        "cpu_ms_per_request",
        more_is_better=False,
        servers=OURS,
    ),
}
STARTS: Final = {
    "S5": Scenario(
        "cold start to the first answer, s",
        "",
        "cold_s",
        more_is_better=False,
        ccr=1.3,
    ),
    "S6": Scenario("idle memory, MB", "", "idle_mb", more_is_better=False, ccr=0.55, litellm=1 / 4),
}
"""Measured at every start."""
TWO_WORKERS: Final = 1.8
"""Goal for two workers as a multiple of one, with two free cores."""
PEERS: Final = ("ccr", "litellm", "floor")


def _power(small: float, big: float) -> float:
    return math.log10(big / small)


GROWTH: Final = {
    "events of an answer": ("S2", "G-events", _power),
    "tools of a request": ("G-tools12", "G-tools120", _power),
    "turns of a history": ("S3", "G-history", _power),
    # 10 times the streams are 10 times the requests: the cost of each must not change.
    "open streams": ("S4b", "S4", lambda small, big: 1 + _power(small, big)),
}
"""The size that grows tenfold, the scenarios before and after, and the exponent of the cost."""
