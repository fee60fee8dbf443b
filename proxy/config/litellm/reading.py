"""From the text of a ``config.yaml`` to the text of a bridge.toml and the findings."""

import datetime as dt
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from proxy.config import exporting, reading
from proxy.secrets import ConfigError

from .deployments import Deployments
from .people import People
from .report import Finding, Report, table, tables
from .routes import read_aliases, read_fallbacks, route_tables

TOP: Final = ("model_list", "litellm_settings", "router_settings", "general_settings",
              "teams", "keys")  # fmt: skip
LITELLM: Final = ("fallbacks", "default_team_settings", "max_budget", "budget_duration")
ROUTER: Final = ("fallbacks", "model_group_alias")
MOST_VALUES: Final = 100_000
GENERAL: Final = ("master_key",)
HEAD: Final = (
    "# Imported from a LiteLLM config. Read the report, then: manage.py applyconfig FILE\n\n"
)


class Imported(NamedTuple):
    toml: str
    findings: list[Finding]
    counts: dict[str, int]
    """How many tables of each kind were written."""


def read_file(path: Path, *, today: dt.date, environ: Mapping[str, str] = os.environ) -> Imported:
    """Raises ConfigError: the file is missing, no YAML, or not shaped like a LiteLLM config."""
    return reading.of_file(path, partial(read, today=today, environ=environ))


def read(text: str, *, today: dt.date, environ: Mapping[str, str] = os.environ) -> Imported:
    """``today`` is the day from which imported prices hold; ``environ`` knows the addresses."""
    file = table(_parsed(text), "the file")
    if not set(file) & set(TOP):
        raise ConfigError(f"not a LiteLLM config: it has none of {', '.join(TOP)}")
    report = Report()
    report.rest(file, TOP, "$")
    deployments = Deployments(report, today, environ)
    for place, entry in enumerate(tables(file.get("model_list"), "model_list")):
        deployments.add(entry, f"model_list[{place}]")
    routes = _routes(file, deployments, report)
    people = _people(file, report)
    found: dict[str, list[dict[str, Any]]] = {
        "upstreams": list(deployments.upstreams.values()),
        "routes": routes,
        "prices": list(deployments.prices.values()),
        "teams": list(people.teams.values()),
        "keys": list(people.keys.values()),
    }
    toml = HEAD + "\n".join(
        exporting.written(kind, entry) for kind, entries in found.items() for entry in entries
    )
    try:
        reading.read(toml)  # what we write is a bridge.toml, or we say so now
    except ConfigError as mistake:
        raise ConfigError(f"cannot be said in a bridge.toml: {mistake}") from None
    return Imported(toml, report.findings, {kind: len(entries) for kind, entries in found.items()})


def _parsed(text: str) -> Any:
    try:
        loaded = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        # The error itself would quote the line, and the line may hold a secret.
        at = error.problem_mark
        where = f"line {at.line + 1}: " if at else ""
        raise ConfigError(f"not valid YAML: {where}{error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError("not valid YAML") from None
    _check_values(loaded)
    return loaded


def _check_values(loaded: Any) -> None:
    """Raise ConfigError where aliases make too much of a short text: each use of one counts."""
    waiting, seen = [loaded], 0
    while waiting:
        value = waiting.pop()
        seen += 1
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        if seen + len(waiting) > MOST_VALUES:
            raise ConfigError(f"it holds more than {MOST_VALUES} values, its aliases followed")


def _routes(
    file: Mapping[str, Any], deployments: Deployments, report: Report
) -> list[dict[str, Any]]:
    fallbacks: dict[str, list[str]] = {}
    for section, known in (("litellm_settings", LITELLM), ("router_settings", ROUTER)):
        settings = table(file.get(section), section)
        report.rest(settings, known, section)
        where = f"{section}.fallbacks"
        fallbacks |= read_fallbacks(settings.get("fallbacks"), where, deployments.routes, report)
    router = table(file.get("router_settings"), "router_settings")
    where = "router_settings.model_group_alias"
    aliases = read_aliases(router.get("model_group_alias"), where, deployments.routes, report)
    return route_tables(deployments.routes, fallbacks, aliases)


def _people(file: Mapping[str, Any], report: Report) -> People:
    people = People(report)
    settings = table(file.get("litellm_settings"), "litellm_settings")
    where = "litellm_settings.default_team_settings"
    people.add_teams(settings.get("default_team_settings"), where)
    people.add_budget(settings, "litellm_settings")
    people.add_teams(file.get("teams"), "teams")
    people.add_keys(file.get("keys"), "keys")
    general = table(file.get("general_settings"), "general_settings")
    report.rest(general, GENERAL, "general_settings")
    if general.get("master_key"):
        people.add_master(general["master_key"], "general_settings.master_key")
    return people
