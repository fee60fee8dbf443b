"""The definitions of the request metrics on /metrics. Docs, alerts and dashboards use their names.

The name of a metric ends in its unit, and the name of a counter ends in ``_total``. Most label
values are names that an administrator configured (routes, upstreams, teams) or constants of this
code. ``bounded_labels`` limits the few label values that clients and upstreams choose.
"""

from typing import Final

from prometheus_client import disable_created_metrics

from .bounded_labels import BoundedLabels, Counter, Gauge, Histogram
from .multiprocess import GAUGE_MODE, existing_labels, open_worker_files, worker

disable_created_metrics()  # Prometheus does not need the ``_created`` series
# This precedes the first metric, because a metric without labels opens its file at once.
open_worker_files()

# A model's first token takes from tenths of a second to minutes.
RESPONSE_BUCKETS_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)
# The gateway needs a few milliseconds of its own before it calls an upstream.
OVERHEAD_BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)

REQUESTS: Final = Counter(
    "bridge_requests_total",
    "Requests that ended, probes left out.",
    ("endpoint", "route", "upstream", "outcome", "status"),
)
UPSTREAM_ATTEMPTS: Final = Counter(
    "bridge_upstream_attempts_total",
    "Calls of upstreams; status 0: there was no response.",
    ("upstream", "status"),
)
TOKENS: Final = Counter(
    "bridge_tokens_total",
    "Tokens by class and by who counted them: reported or estimated.",
    ("upstream", "model", "class", "source"),
)
COST_USD: Final = Counter(
    "bridge_cost_usd_total",
    "US dollars by the prices in force when the requests came.",
    ("team", "upstream", "model"),
)
UNPRICED_REQUESTS: Final = Counter(
    "bridge_unpriced_requests_total",
    "Completed requests whose cost is unknown, because a price or tokens are missing.",
    ("upstream", "model"),
)
FIRST_BYTE_SECONDS: Final = Histogram(
    "bridge_first_byte_seconds",
    "From the request's arrival to the first content that left for the client.",
    ("upstream",),
    buckets=RESPONSE_BUCKETS_S,
)
REQUEST_SECONDS: Final = Histogram(
    "bridge_request_seconds",
    "From the request's arrival to the end of its response.",
    ("endpoint", "upstream"),
    buckets=RESPONSE_BUCKETS_S,
)
TEAM_REQUESTS: Final = Counter(
    "bridge_team_requests_total",
    "Requests with a key of the team that ended.",
    ("team", "upstream", "outcome"),
)
TEAM_FIRST_BYTE_SECONDS: Final = Histogram(
    "bridge_team_first_byte_seconds",
    "From the arrival of a team's request to the first content that left for the client.",
    ("team",),
    buckets=RESPONSE_BUCKETS_S,
)
UPSTREAM_ERRORS: Final = Counter(
    "bridge_upstream_errors_total",
    "Requests that ended with an error of an upstream, by Anthropic's type of the error.",
    ("upstream", "error_type"),
)
REFUSALS: Final = Counter(
    "bridge_refusals_total",
    "Requests that the gateway refused, by reason: the limit that was reached (rpm, tpm, "
    "concurrency, budget, max_streams, lag and others), or the type of the error.",
    ("reason",),
)
OVERHEAD_SECONDS: Final = Histogram(
    "bridge_overhead_seconds",
    "From the request's arrival to the first call of an upstream: the gateway's own time.",
    buckets=OVERHEAD_BUCKETS_S,
)
NOTES: Final = Counter(
    "bridge_notes_total",
    "What translation dropped, clamped, renamed, emulated, repaired or ignored, by field.",
    ("fate", "field"),
)
UNKNOWN_EVENTS: Final = Counter(
    "bridge_unknown_events_total",
    "Upstream events of a type that this version does not know and skips.",
    ("dialect", "kind"),
)
CONNECTIONS_CLOSED: Final = Counter(
    "bridge_connections_closed_total",
    "Client connections refused at a limit, closed at a deadline or for an invalid request.",
    ("reason",),
)
BUDGETS_UNCHECKED: Final = Counter(
    "bridge_budgets_unchecked_total",
    "Requests rejected with 503 because a hard budget could not be checked: the counters cannot be "
    "reached, or the ledger and the counters do not know what was spent.",
    ("unavailable",),
)
SECRET_FILE_CHANGES: Final = Counter(
    "bridge_secret_files_total",
    "Files of upstream secrets that changed, failed (the last good secret stays) or recovered.",
    ("result",),
)
CREDENTIAL_REFRESHES: Final = Counter(
    "bridge_credential_refreshes_total",
    "Refreshes of upstream credentials that expire, by result: refreshed, or failed (the last "
    "credential stays in use until it expires).",
    ("upstream", "result"),
)
CREDENTIAL_EXPIRY: Final = Gauge(
    "bridge_credential_expiry_timestamp_seconds",
    "When the credential of an upstream expires, in seconds since 1970, by worker: subtract "
    "time() for the seconds left. +Inf: it does not expire, or the upstream is no longer used.",
    ("upstream", "worker"),
    multiprocess_mode=GAUGE_MODE,
)
STRAY_RESPONSES: Final = Counter(
    "bridge_upstream_stray_responses_total",
    "Connections that were closed because an upstream sent bytes without a request: "
    "on an idle connection, after a response, or before the request was sent completely.",
    ("upstream", "when"),
)
WEBHOOK_DELIVERIES: Final = Counter(
    "bridge_webhook_deliveries_total",
    "Attempts to send an event to a webhook or a mail address, by result: delivered, retried or "
    "failed (the last attempt).",
    ("result",),
)
IN_FLIGHT: Final = Gauge(
    "bridge_in_flight_requests",
    "Messages requests that are being answered now, by worker.",
    ("worker",),
    multiprocess_mode=GAUGE_MODE,
)
METRICS: Final = tuple(one for one in [*globals().values()] if isinstance(one, BoundedLabels))
"""All of the metrics above, in their order."""
BY_NAME: Final = {metric.full_name: metric for metric in METRICS}
WORKER: Final = str(worker.number)
WORKER_IN_FLIGHT: Final = IN_FLIGHT.labels(WORKER)


# Count the label sets in the files of an earlier worker towards this worker's limit.
_by_family = {metric.family.name: metric for metric in METRICS}
for _family, _labels in existing_labels():
    if _names := _by_family[_family].label_names:
        _by_family[_family].labels(*(_labels[name] for name in _names))
