"""The dimensions by which reports filter and group, with the database column of each."""

from collections.abc import Mapping
from typing import Any, Final

from proxy.ledger.maintenance.export import key_id

DIMENSIONS: Final[Mapping[str, str]] = {
    "team": "team",
    "key": "key_name",
    "key_id": "key_id",
    "user": "user",
    "client": "client_name",
    "endpoint": "endpoint",
    "model": "model_requested",
    "model_upstream": "model_upstream",
    "upstream": "upstream",
    "service_tier": "service_tier",
    "context_window": "context_window",
    "outcome": "outcome",
    "status": "status",
    "stop_reason": "stop_reason",
    "error_type": "error_type",
}
"""Name of the dimension in the API -> its column in the rollup tables and in Exchange."""


def dimension_value(name: str, value: Any) -> Any:
    """Return a value of a dimension as the API shows it: the id that filters take."""
    return key_id(value) if name == "key_id" else value
