"""The forms of the admin that the write matrix sends."""

from typing import Any

RULES = dict.fromkeys(
    ("models_allowed", "ip_allow", "limits_0", "limits_1", "limits_2", "options_0", "options_1", "options_2"),
    "",
)  # fmt: skip


def key_form(team: str, name: str = "new", **fields: Any) -> dict[str, Any]:
    return {"team": team, "name": name, "scopes": ["messages"], **RULES, **fields}


def budget_form(**fields: Any) -> dict[str, Any]:
    blank = dict.fromkeys(("team", "key", "user"), "")
    rest = {"usd": "77", "period": "week", "zone": "UTC", "hard": "on"}
    notices = {"notices-TOTAL_FORMS": 0, "notices-INITIAL_FORMS": 0}
    return {**blank, **rest, **notices, "emails": "", **fields}


def route_form(team: str, model: str = "new-*", target: str = "") -> dict[str, Any]:
    line = {"position": 0, "upstream": "{vllm}", "model": "", "weight": 3}
    old = {"id": "{%s_target}" % target, "route": "{%s_route}" % target} if target else {}  # noqa: UP031
    targets = {f"targets-0-{name}": value for name, value in {**line, **old}.items()}
    counts = {"targets-TOTAL_FORMS": 1, "targets-INITIAL_FORMS": 1 if target else 0}
    return {"model": model, "team": team, "position": 5, **counts, **targets}


def team_form(name: str, **fields: Any) -> dict[str, Any]:
    rest = {"store": "full", "retention_days": 7, **RULES}
    return {"name": name, **rest, **fields}


def user_form(name: str, **fields: Any) -> dict[str, Any]:
    joined = {"date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"}
    lines = {"identities-TOTAL_FORMS": 0, "identities-INITIAL_FORMS": 0}
    return {"username": name, "is_active": "on", "is_staff": "on", **joined, **lines, **fields}
