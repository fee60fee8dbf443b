"""The report of an import: a finding for each entry of the file that was dropped or changed.

A finding contains the path of the entry and the reason, but not the value, which may be a secret.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from proxy.secrets import ConfigError

ENVIRONMENT: Final = "os.environ/"

Verdict = Literal["dropped", "changed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: an entry of the file that was dropped or changed, and why."""

    where: str
    verdict: Verdict
    why: str


class Report:
    """Collects the findings of an import, in the order of the file."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def dropped(self, where: str, why: str) -> None:
        self.findings.append(Finding(where, "dropped", why))

    def changed(self, where: str, why: str) -> None:
        self.findings.append(Finding(where, "changed", why))

    def report_unknown(self, table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
        """Report every entry of the table that is not in ``known``, because it is not converted."""
        for name in table:
            if name not in known:
                self.dropped(f"{where}.{name}", WHY.get(str(name), "has no equivalent"))

    def secret(self, value: Any, where: str, instead: str) -> dict[str, str]:
        """Return a reference to a secret: an environment variable, by default ``instead``.

        A secret that is in the file itself is not copied, only reported.
        """
        if isinstance(value, str) and value.startswith(ENVIRONMENT) and value != ENVIRONMENT:
            return {"env": value.removeprefix(ENVIRONMENT)}
        self.dropped(where, f"contains a secret; put it into the variable {instead}")
        return {"env": instead}


WHY: Final = {
    "max_retries": "the next target is tried before the first byte; nothing is sent twice to one",
    "num_retries": "the next target is tried before the first byte; nothing is sent twice to one",
    "routing_strategy": "targets are chosen by weight, or tried in order",
    "drop_params": "unsupported parameters are always dropped, with a note on the request",
    "callbacks": "the ledger and the reports contain every request",
    "success_callback": "the ledger and the reports contain every request",
    "failure_callback": "the ledger and the reports contain every request",
    "cache": "responses are not cached; the upstream's prompt cache is used",
    "database_url": "set DATABASE_URL",
    "redis_host": "set REDIS_URL",
    "environment_variables": "set them in the environment of serve",
    "include": "import the included files one by one",
    "guardrails": "guardrails are not supported",
    "extra_headers": "headers cannot be added; they may contain a secret",
    "api_version": "Azure's /openai/v1 does not need it",
}


def table(value: Any, where: str) -> dict[str, Any]:
    """Return ``value``, which must be a mapping; for None, an empty one.

    Raises ConfigError, which names the path ``where``.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected a mapping")
    return value


def tables(value: Any, where: str) -> list[dict[str, Any]]:
    """Return ``value``, which must be a list of mappings; for None, an empty list.

    Raises ConfigError, which names the path ``where``.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"{where}: expected a list")
    return [table(entry, f"{where}[{place}]") for place, entry in enumerate(value)]
