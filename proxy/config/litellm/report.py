"""What an import tells its reader: one finding for each thing that is not as it was.

A finding names the path and the reason, never the value: the value may be a secret.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from proxy.secrets import ConfigError

ENVIRONMENT: Final = "os.environ/"

Verdict = Literal["dropped", "changed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    where: str
    verdict: Verdict
    why: str


class Report:
    """Collects findings, in the order of the file."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def dropped(self, where: str, why: str) -> None:
        self.findings.append(Finding(where, "dropped", why))

    def changed(self, where: str, why: str) -> None:
        self.findings.append(Finding(where, "changed", why))

    def rest(self, table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
        """Report every entry of the table that nobody reads."""
        for name in table:
            if name not in known:
                self.dropped(
                    f"{where}.{name}", WHY.get(str(name), "nothing here corresponds to it")
                )

    def secret(self, value: Any, where: str, instead: str) -> dict[str, str]:
        """A reference to the secret. One that stands in the file is not copied, only reported."""
        if isinstance(value, str) and value.startswith(ENVIRONMENT) and value != ENVIRONMENT:
            return {"env": value.removeprefix(ENVIRONMENT)}
        self.dropped(where, f"a secret stood in the file; put it into the variable {instead}")
        return {"env": instead}


WHY: Final = {
    "max_retries": "the next target is tried before the first byte; nothing is sent twice to one",
    "num_retries": "the next target is tried before the first byte; nothing is sent twice to one",
    "routing_strategy": "targets are drawn by weight, or tried in order",
    "drop_params": "what a server cannot take is always dropped, with a note on the request",
    "callbacks": "the ledger and the reports hold every request",
    "success_callback": "the ledger and the reports hold every request",
    "failure_callback": "the ledger and the reports hold every request",
    "cache": "answers are not cached; the upstream's prompt cache is used",
    "database_url": "set DATABASE_URL",
    "redis_host": "set REDIS_URL",
    "environment_variables": "set them where serve is started",
    "include": "import the included files one by one",
    "guardrails": "there are no guardrails here",
    "extra_headers": "headers cannot be added; a secret among them would stand in the file",
    "api_version": "Azure's /openai/v1 needs none",
}


def table(value: Any, where: str) -> dict[str, Any]:
    """The mapping at this place, empty when absent; raises ConfigError for anything else."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: a mapping is expected")
    return value


def tables(value: Any, where: str) -> list[dict[str, Any]]:
    """The list of mappings at this place; raises ConfigError for anything else."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"{where}: a list is expected")
    return [table(entry, f"{where}[{place}]") for place, entry in enumerate(value)]
