"""The dimensions of Anthropic's reports, and this gateway's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from proxy.ledger.maintenance.export import account_id, key_id, workspace_id


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of ``group_by``: its name in /api/v1/ reports, and the format of its values."""

    name: str | None
    """None if the gateway does not record this dimension: its value is null in every row."""
    format_value: Callable[[Any], Any] = lambda value: value or None


ANTHROPIC_DIMENSIONS: Final[Mapping[str, Dimension]] = {
    "account_id": Dimension("user", account_id),
    "api_key_id": Dimension("key_id", key_id),
    "context_window": Dimension("context_window"),
    "inference_geo": Dimension(None),
    "model": Dimension("model"),
    "service_account_id": Dimension(None),
    "service_tier": Dimension("service_tier", lambda tier: tier or "standard"),
    "speed": Dimension(None),
    "workspace_id": Dimension("team", workspace_id),
}
OWN_DIMENSIONS: Final[Mapping[str, Dimension]] = {
    "team": Dimension("team"),
    "user": Dimension("user"),
    "key_name": Dimension("key"),
    "upstream": Dimension("upstream"),
    "model_upstream": Dimension("model_upstream"),
    "stop_reason": Dimension("stop_reason"),
    "client": Dimension("client"),
    "session": Dimension("session"),
}
DIMENSIONS: Final = {**ANTHROPIC_DIMENSIONS, **OWN_DIMENSIONS}
