"""Convert teams, keys and budgets of LiteLLM, from its settings or from lists in its API format."""

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from .report import Report, tables

PERIODS: Final[Mapping[str, str]] = {
    "1d": "day", "24h": "day", "daily": "day",
    "7d": "week", "1w": "week", "weekly": "week",
    "30d": "month", "31d": "month", "1mo": "month", "monthly": "month",
}  # fmt: skip
LIMITS: Final[Mapping[str, str]] = {
    "rpm_limit": "rpm",
    "tpm_limit": "tpm",
    "max_parallel_requests": "concurrency",
}
BUDGET: Final = ("max_budget", "budget_duration")
TEAM: Final = ("team_id", "team_alias", "models", *BUDGET, *LIMITS)
KEY: Final = ("key", "key_alias", "key_name", "team_id", "models", *BUDGET, *LIMITS)
DEFAULT: Final = "default"


class TeamsAndKeys:
    """Collects the ``teams`` and ``keys`` tables of a bridge.toml."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.teams: dict[str, dict[str, Any]] = {}
        self.keys: dict[tuple[str, str], dict[str, Any]] = {}
        self._ids: dict[str, str] = {}

    def add_teams(self, value: Any, where: str) -> None:
        for place, entry in enumerate(tables(value, where)):
            at = f"{where}[{place}]"
            self.report.report_unknown(entry, TEAM, at)
            name = self._name(entry.get("team_alias") or entry.get("team_id"), at)
            if name:
                self._ids[str(entry.get("team_id") or name)] = name
                self.teams.setdefault(name, {"name": name}).update(self._shared_fields(entry, at))

    def add_keys(self, value: Any, where: str) -> None:
        for place, entry in enumerate(tables(value, where)):
            at = f"{where}[{place}]"
            self.report.report_unknown(entry, KEY, at)
            name = self._name(entry.get("key_alias") or entry.get("key_name"), at)
            if not name:
                continue
            team_id = entry.get("team_id")
            team = self._ids.get(str(team_id))
            if not team:
                team = self._name(team_id, f"{at}.team_id") if team_id else DEFAULT
            key = {"team": team or DEFAULT, "name": name, **self._shared_fields(entry, at)}
            if entry.get("key"):
                variable = "BRIDGE_KEY_" + re.sub(r"[^A-Z0-9]+", "_", f"{team}_{name}".upper())
                key["secret"] = self.report.secret(entry["key"], f"{at}.key", variable)
            self._put(key)

    def add_master(self, value: Any, where: str) -> None:
        """Convert LiteLLM's master key, which has all rights, into a key with every scope."""
        secret = self.report.secret(value, where, "BRIDGE_KEY_MASTER")
        self.report.changed(where, f"became the key {DEFAULT}/master; create a key for each user")
        scopes = ["messages", "reports", "admin"]
        self._put({"team": DEFAULT, "name": "master", "scopes": scopes, "secret": secret})

    def add_budget(self, settings: Mapping[str, Any], where: str) -> None:
        """Convert LiteLLM's budget for the whole proxy to a budget of the team ``default``."""
        budgets = self._budgets(settings, where)
        if budgets:
            self.report.changed(
                f"{where}.max_budget", f"became the budget of the team {DEFAULT!r} only"
            )
            self.teams.setdefault(DEFAULT, {"name": DEFAULT})["budgets"] = budgets

    def _put(self, key: dict[str, Any]) -> None:
        self.teams.setdefault(key["team"], {"name": key["team"]})
        self.keys[key["team"], key["name"]] = key

    def _shared_fields(self, entry: Mapping[str, Any], where: str) -> dict[str, Any]:
        limits = {}
        for name, own_key in LIMITS.items():
            value = entry.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                limits[own_key] = value
            elif value is not None:
                self.report.dropped(f"{where}.{name}", "expected a whole number above 0")
        models = entry.get("models") or []
        if not isinstance(models, list):
            models = [models]
        allowed = [str(model) for model in models if model not in {"all-proxy-models", "*"}]
        return {"models": allowed, "limits": limits, "budgets": self._budgets(entry, where)}

    def _budgets(self, entry: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
        value = entry.get("max_budget")
        if value is None:
            return []
        try:
            usd = round(Decimal(str(value)), 6)
        except InvalidOperation:
            usd = Decimal(-1)
        if isinstance(value, bool) or not usd.is_finite() or not 0 <= usd < 10**8:
            self.report.dropped(f"{where}.max_budget", "is not an amount of US dollars")
            return []
        duration = str(entry.get("budget_duration") or "")
        period = PERIODS.get(duration)
        if period is None:
            self.report.changed(
                f"{where}.budget_duration", "became a month; only day, week and month are supported"
            )
        elif duration not in {"1mo", "monthly", "daily", "weekly", "1d", "24h"}:
            self.report.changed(f"{where}.budget_duration", f"became a calendar {period} (UTC)")
        return [{"usd": usd, "period": period or "month"}]

    def _name(self, value: Any, where: str) -> str:
        """Return a name that is valid in bridge.toml; if there is none, report it and return ""."""
        text = str(value or "")
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:64]
        if not name:
            self.report.dropped(where, "has no name; give it an alias")
        elif name != text:
            self.report.changed(where, f"was renamed to {name!r}")
        return name
