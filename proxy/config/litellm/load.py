"""Convert the text of a LiteLLM ``config.yaml`` to the text of a bridge.toml, with a report."""

import datetime as dt
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from proxy.config import dump, load
from proxy.secrets import ConfigError

from .deployments import Deployments
from .report import Finding, Report, table, tables
from .routes import read_aliases, read_fallbacks, route_tables
from .teams_and_keys import TeamsAndKeys

TOP: Final = ("model_list", "litellm_settings", "router_settings", "general_settings",
              "teams", "keys")  # fmt: skip
LITELLM: Final = ("fallbacks", "default_team_settings", "max_budget", "budget_duration")
ROUTER: Final = ("fallbacks", "model_group_alias")
MAX_VALUES: Final = 100_000
GENERAL: Final = ("master_key",)
HEAD: Final = (
    "# Imported from a LiteLLM config. Read the report, then: manage.py applyconfig FILE\n\n"
)


class Imported(NamedTuple):
    toml: str
    findings: list[Finding]
    counts: dict[str, int]
    """The number of converted tables of each kind, such as ``upstreams``."""


def read_file(path: Path, *, today: dt.date, environ: Mapping[str, str] = os.environ) -> Imported:
    """Convert a file. Raises ConfigError if it is missing, not YAML, or not a LiteLLM config."""
    return load.parse_file(path, partial(read, today=today, environ=environ))


def read(text: str, *, today: dt.date, environ: Mapping[str, str] = os.environ) -> Imported:
    """Convert the text of a LiteLLM ``config.yaml``. Raises ConfigError.

    Imported prices apply from ``today`` on. ``environ``: the environment variables from which to
    take base URLs such as ``os.environ/NAME``.
    """
    file = table(_parse_yaml(text), "the file")
    if not set(file) & set(TOP):
        raise ConfigError(f"not a LiteLLM config: it has none of {', '.join(TOP)}")
    report = Report()
    report.report_unknown(file, TOP, "$")
    deployments = Deployments(report, today, environ)
    for place, entry in enumerate(tables(file.get("model_list"), "model_list")):
        deployments.add(entry, f"model_list[{place}]")
    routes = _routes(file, deployments, report)
    accounts = _teams_and_keys(file, report)
    converted: dict[str, list[dict[str, Any]]] = {
        "upstreams": list(deployments.upstreams.values()),
        "routes": routes,
        "prices": list(deployments.prices.values()),
        "teams": list(accounts.teams.values()),
        "keys": list(accounts.keys.values()),
    }
    toml = HEAD + "\n".join(
        dump.dump_table(kind, entry) for kind, entries in converted.items() for entry in entries
    )
    try:
        load.read(toml)  # the result must be a valid bridge.toml
    except ConfigError as error:
        raise ConfigError(f"cannot be written as a bridge.toml: {error}") from None
    counts = {kind: len(entries) for kind, entries in converted.items()}
    return Imported(toml, report.findings, counts)


def _parse_yaml(text: str) -> Any:
    try:
        loaded = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        # str(error) quotes the line, which may contain a secret, so it is not used.
        at = error.problem_mark
        where = f"line {at.line + 1}: " if at else ""
        raise ConfigError(f"not valid YAML: {where}{error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError("not valid YAML") from None
    _check_values(loaded)
    return loaded


def _check_values(loaded: Any) -> None:
    """Raise ConfigError if YAML aliases expand a short text to too many values."""
    waiting, seen = [loaded], 0
    while waiting:
        value = waiting.pop()
        seen += 1
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        if seen + len(waiting) > MAX_VALUES:
            raise ConfigError(f"more than {MAX_VALUES} values after its aliases are expanded")


def _routes(
    file: Mapping[str, Any], deployments: Deployments, report: Report
) -> list[dict[str, Any]]:
    fallbacks: dict[str, list[str]] = {}
    for section, known in (("litellm_settings", LITELLM), ("router_settings", ROUTER)):
        settings = table(file.get(section), section)
        report.report_unknown(settings, known, section)
        where = f"{section}.fallbacks"
        fallbacks |= read_fallbacks(settings.get("fallbacks"), where, deployments.routes, report)
    router = table(file.get("router_settings"), "router_settings")
    where = "router_settings.model_group_alias"
    aliases = read_aliases(router.get("model_group_alias"), where, deployments.routes, report)
    return route_tables(deployments.routes, fallbacks, aliases)


def _teams_and_keys(file: Mapping[str, Any], report: Report) -> TeamsAndKeys:
    accounts = TeamsAndKeys(report)
    settings = table(file.get("litellm_settings"), "litellm_settings")
    where = "litellm_settings.default_team_settings"
    accounts.add_teams(settings.get("default_team_settings"), where)
    accounts.add_budget(settings, "litellm_settings")
    accounts.add_teams(file.get("teams"), "teams")
    accounts.add_keys(file.get("keys"), "keys")
    general = table(file.get("general_settings"), "general_settings")
    report.report_unknown(general, GENERAL, "general_settings")
    if general.get("master_key"):
        accounts.add_master(general["master_key"], "general_settings.master_key")
    return accounts
