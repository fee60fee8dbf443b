"""Every number that /metrics tells of requests: the one table that docs and dashboards rest on.

Names end in their unit; counters end in ``_total``. Labels hold what an administrator configured
(routes, upstreams, teams) or what this code knows; ``tally.py`` bounds whatever else gets in.
"""

from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """One family of series; ``buckets`` are upper bounds, without the last, infinite one."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


# A model's first word takes from tenths of a second to minutes.
ANSWER_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)
# What the gateway itself adds before it dials is a matter of milliseconds.
OWN_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)

REQUESTS: Final = Metric(
    "bridge_requests_total",
    "counter",
    "Requests that ended, probes left out.",
    ("endpoint", "route", "upstream", "outcome", "status"),
)
ATTEMPTS: Final = Metric(
    "bridge_upstream_attempts_total",
    "counter",
    "Calls of upstreams; status 0: there was no answer.",
    ("upstream", "status"),
)
TOKENS: Final = Metric(
    "bridge_tokens_total",
    "counter",
    "Tokens by class and by who counted them: reported or estimated.",
    ("upstream", "model", "class", "source"),
)
COST: Final = Metric(
    "bridge_cost_usd_total",
    "counter",
    "US dollars by the prices in force when the requests came.",
    ("team", "upstream", "model"),
)
UNPRICED: Final = Metric(
    "bridge_unpriced_requests_total",
    "counter",
    "Answered requests whose cost is unknown, because a price or tokens are missing.",
    ("upstream", "model"),
)
FIRST_BYTE: Final = Metric(
    "bridge_first_byte_seconds",
    "histogram",
    "From the request's arrival to the first content that left for the client.",
    ("upstream",),
    ANSWER_S,
)
DURATION: Final = Metric(
    "bridge_request_seconds",
    "histogram",
    "From the request's arrival to the end of its answer.",
    ("endpoint",),
    ANSWER_S,
)
OVERHEAD: Final = Metric(
    "bridge_overhead_seconds",
    "histogram",
    "From the request's arrival to the first call of an upstream: the gateway's own time.",
    (),
    OWN_S,
)
NOTES: Final = Metric(
    "bridge_notes_total",
    "counter",
    "What translation dropped, clamped, renamed, emulated, repaired or ignored, by field.",
    ("fate", "field"),
)
UNKNOWN: Final = Metric(
    "bridge_unknown_events_total",
    "counter",
    "Upstream events of a kind that this version does not know; they were passed over.",
    ("dialect", "kind"),
)
CONNECTIONS: Final = Metric(
    "bridge_connections_closed_total",
    "counter",
    "Connections of clients refused at a limit, closed at a deadline or for a wrong request.",
    ("reason",),
)
SECRET_FILES: Final = Metric(
    "bridge_secret_files_total",
    "counter",
    "Files of upstream secrets that changed, failed (the last good secret stays) or recovered.",
    ("result",),
)
STRAYS: Final = Metric(
    "bridge_upstream_stray_responses_total",
    "counter",
    "Connections that were closed because an upstream sent bytes that no request had asked for: "
    "on an idle connection, after a response, or before the request was wholly sent.",
    ("upstream", "when"),
)
IN_FLIGHT: Final = Metric(
    "bridge_in_flight_requests",
    "gauge",
    "Messages that are being answered now, by worker.",
    ("worker",),
)

CATALOGUE: Final = (
    REQUESTS,
    ATTEMPTS,
    TOKENS,
    COST,
    UNPRICED,
    FIRST_BYTE,
    DURATION,
    OVERHEAD,
    NOTES,
    UNKNOWN,
    CONNECTIONS,
    SECRET_FILES,
    STRAYS,
    IN_FLIGHT,
)
BY_NAME: Final = {metric.name: metric for metric in CATALOGUE}
