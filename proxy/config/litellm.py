"""Convert a LiteLLM ``config.yaml`` into a bridge.toml, and report what was not converted.

A finding of the report contains the path of the entry and the reason, but not the value, which may
be a secret. Each entry of ``model_list`` (a deployment) becomes an upstream, a target of a route
and, if it has costs, a price. Teams, keys and budgets come from LiteLLM's settings or from lists in
its API format.
"""

import datetime as dt
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import yaml
from django.core.exceptions import ValidationError

from proxy.config import dump, load
from proxy.models.setup.upstreams import check_base_url
from proxy.secrets import ConfigError

Table = dict[str, Any]
ENVIRONMENT: Final = "os.environ/"
GLOB: Final = re.compile(r"[*?\[]")
MAX_VALUES: Final = 100_000
EVEN_WEIGHT: Final = 2
"""The weight for equal shares; weights that are all 1 mean "try in order" in a bridge.toml."""
DEFAULT: Final = "default"
HEAD: Final = (
    "# Imported from a LiteLLM config. Read the report, then: manage.py applyconfig FILE\n\n"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: an entry of the file that was dropped or changed, and why."""

    where: str
    verdict: Literal["dropped", "changed"]
    why: str


class Imported(NamedTuple):
    toml: str
    findings: list[Finding]
    counts: dict[str, int]
    """The number of converted tables of each kind, such as ``upstreams``."""


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


class Provider(NamedTuple):
    """The upstream settings for a provider.

    ``base_url``: if empty, the LiteLLM file must have an ``api_base``. ``key``: the environment
    variable of the API key; if empty, no key is needed.
    """

    dialect: str
    profile: str
    base_url: str = ""
    key: str = ""
    tail: str = ""  # appended to LiteLLM's api_base


OPENAI: Final = Provider("responses", "openai", "https://api.openai.com/v1", "OPENAI_API_KEY")

PROVIDERS: Final[Mapping[str, Provider]] = {
    "openai": OPENAI,
    "azure": Provider("chat", "azure", key="AZURE_API_KEY", tail="/openai/v1"),
    "azure_ai": Provider("chat", "generic", key="AZURE_AI_API_KEY"),
    "anthropic": Provider(
        "anthropic", "anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY"
    ),
    "gemini": Provider(
        "chat",
        "gemini",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "GEMINI_API_KEY",
    ),
    "deepseek": Provider("chat", "deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "openrouter": Provider(
        "chat", "openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"
    ),
    "groq": Provider("chat", "generic", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "mistral": Provider("chat", "generic", "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "xai": Provider("chat", "generic", "https://api.x.ai/v1", "XAI_API_KEY"),
    "together_ai": Provider("chat", "generic", "https://api.together.xyz/v1", "TOGETHERAI_API_KEY"),
    "fireworks_ai": Provider(
        "chat", "generic", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"
    ),
    "cerebras": Provider("chat", "generic", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "ollama": Provider("chat", "ollama", "http://localhost:11434/v1", tail="/v1"),
    "ollama_chat": Provider("chat", "ollama", "http://localhost:11434/v1", tail="/v1"),
    "hosted_vllm": Provider("chat", "vllm"),
    "vllm": Provider("chat", "vllm"),
    "lm_studio": Provider("chat", "generic"),
    "llamafile": Provider("chat", "llamacpp"),
    "litellm_proxy": Provider("chat", "generic"),
}
COMPATIBLE: Final = Provider("chat", "generic", key="OPENAI_API_KEY")
"""The provider for ``openai/...`` with an ``api_base`` that is not OpenAI's: such servers have the
Chat Completions API."""
PRICES: Final[Mapping[str, str]] = {
    "input_cost_per_token": "input",
    "output_cost_per_token": "output",
    "cache_read_input_token_cost": "cache_read",
    "cache_creation_input_token_cost": "cache_write_5m",
}
TIMEOUTS: Final[Mapping[str, str]] = {"timeout": "total_s", "stream_timeout": "first_byte_s"}
LIMITS: Final[Mapping[str, str]] = {
    "rpm_limit": "rpm",
    "tpm_limit": "tpm",
    "max_parallel_requests": "concurrency",
}
PERIODS: Final[Mapping[str, str]] = {
    "1d": "day", "24h": "day", "daily": "day",
    "7d": "week", "1w": "week", "weekly": "week",
    "30d": "month", "31d": "month", "1mo": "month", "monthly": "month",
}  # fmt: skip
CALENDAR: Final = ("1mo", "monthly", "daily", "weekly", "1d", "24h")
"""Durations that mean a calendar period for LiteLLM, too."""
SHARED: Final = ("team_id", "models", "max_budget", "budget_duration", *LIMITS)
KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "$": ("model_list", "litellm_settings", "router_settings", "general_settings", "teams", "keys"),
    "deployment": ("model_name", "litellm_params", "model_info"),
    "params": (
        "model", "api_base", "base_url", "api_key", "timeout", "stream_timeout", "weight", "order",
        "rpm", "tpm", *PRICES,
    ),
    "info": (
        "id", "mode", "base_model", "description", "max_tokens", "max_input_tokens",
        "max_output_tokens", "litellm_provider", "supports_vision", "supports_function_calling",
        *PRICES,
    ),
    "litellm_settings": ("fallbacks", "default_team_settings", "max_budget", "budget_duration"),
    "router_settings": ("fallbacks", "model_group_alias"),
    "general_settings": ("master_key",),
    "team": ("team_alias", *SHARED),
    "key": ("key", "key_alias", "key_name", *SHARED),
}  # fmt: skip
"""The names of each table that are converted; every other one is reported."""


def read_file(path: Path, *, today: dt.date, environ: Mapping[str, str] = os.environ) -> Imported:
    """Convert a file. Raises ConfigError if it is missing, not YAML, or not a LiteLLM config."""
    return load.parse_file(path, partial(read, today=today, environ=environ))


def read(text: str, *, today: dt.date, environ: Mapping[str, str] = os.environ) -> Imported:
    """Convert the text of a LiteLLM ``config.yaml``. Raises ConfigError.

    Imported prices apply from ``today`` on. ``environ``: the environment variables from which to
    take base URLs such as ``os.environ/NAME``.
    """
    file = table(_parse_yaml(text), "the file")
    if not set(file) & set(KNOWN["$"]):
        raise ConfigError(f"not a LiteLLM config: it has none of {', '.join(KNOWN['$'])}")
    importer = _Importer(today, environ)
    converted = importer.convert(file)
    toml = HEAD + "\n".join(
        dump.dump_table(kind, entry) for kind, entries in converted.items() for entry in entries
    )
    try:
        load.read(toml)  # the result must be a valid bridge.toml
    except ConfigError as error:
        raise ConfigError(f"cannot be written as a bridge.toml: {error}") from None
    counts = {kind: len(entries) for kind, entries in converted.items()}
    return Imported(toml, importer.findings, counts)


def _parse_yaml(text: str) -> Any:
    """Return the values. Raises ConfigError, also if aliases expand a short text to too many."""
    try:
        loaded = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        # str(error) quotes the line, which may contain a secret, so it is not used.
        at = error.problem_mark
        where = f"line {at.line + 1}: " if at else ""
        raise ConfigError(f"not valid YAML: {where}{error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError("not valid YAML") from None
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
    return loaded


def table(value: Any, where: str) -> Table:
    """Return a mapping; for None, an empty one. Raises ConfigError, which names the path."""
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"{where}: expected a mapping")
    return value or {}


def tables(value: Any, where: str) -> list[tuple[Table, str]]:
    """Return each mapping of a list with its path; none for None. Raises ConfigError."""
    if value is not None and not isinstance(value, list):
        raise ConfigError(f"{where}: expected a list")
    paths = [f"{where}[{place}]" for place in range(len(value or ()))]
    return [(table(entry, path), path) for entry, path in zip(value or (), paths, strict=True)]


class Target(NamedTuple):
    upstream: str
    model: str
    weight: int
    order: int

    def table(self, weight: int) -> Table:
        return {"upstream": self.upstream, "model": self.model, "weight": weight}


class _Importer:
    def __init__(self, today: dt.date, environ: Mapping[str, str]) -> None:
        self.today, self.environ = today, environ
        self.findings: list[Finding] = []
        self.upstreams: dict[str, Table] = {}
        self.routes: dict[str, list[Target]] = {}
        self.prices: dict[tuple[str, str], Table] = {}
        self.teams: dict[str, Table] = {}
        self.keys: dict[tuple[str, str], Table] = {}
        self.team_ids: dict[str, str] = {}

    def convert(self, file: Table) -> dict[str, list[Table]]:
        """Return the tables of the bridge.toml by kind."""
        self.report_unknown(file, "$", "$")
        sections = {}
        for name in ("litellm_settings", "router_settings", "general_settings"):
            sections[name] = table(file.get(name), name)
        for entry, where in tables(file.get("model_list"), "model_list"):
            self.add_deployment(entry, where)
        for name, settings in sections.items():
            self.report_unknown(settings, name, name)
        routes = self.route_tables(sections)
        settings = sections["litellm_settings"]
        where = "litellm_settings.default_team_settings"
        self.add_teams(settings.get("default_team_settings"), where)
        if budgets := self.budgets(settings, "litellm_settings"):
            text = f"became the budget of the team {DEFAULT!r} only"
            self.changed("litellm_settings.max_budget", text)
            self.teams.setdefault(DEFAULT, {"name": DEFAULT})["budgets"] = budgets
        self.add_teams(file.get("teams"), "teams")
        self.add_keys(file.get("keys"), "keys")
        if master := sections["general_settings"].get("master_key"):
            where = "general_settings.master_key"
            secret = self.secret(master, where, "BRIDGE_KEY_MASTER")
            self.changed(where, f"became the key {DEFAULT}/master; create a key for each user")
            scopes = ["messages", "reports", "admin"]
            self.put_key({"team": DEFAULT, "name": "master", "scopes": scopes, "secret": secret})
        return {
            "upstreams": list(self.upstreams.values()),
            "routes": routes,
            "prices": list(self.prices.values()),
            "teams": list(self.teams.values()),
            "keys": list(self.keys.values()),
        }

    def dropped(self, where: str, why: str) -> None:
        self.findings.append(Finding(where, "dropped", why))

    def changed(self, where: str, why: str) -> None:
        self.findings.append(Finding(where, "changed", why))

    def report_unknown(self, entry: Table, kind: str, where: str) -> None:
        for name in entry:
            if name not in KNOWN[kind]:
                self.dropped(f"{where}.{name}", WHY.get(str(name), "has no equivalent"))

    def secret(self, value: Any, where: str, instead: str) -> dict[str, str]:
        """Return a reference to a secret: an environment variable, by default ``instead``.

        A secret that is in the file itself is not copied, only reported.
        """
        if isinstance(value, str) and value.startswith(ENVIRONMENT) and value != ENVIRONMENT:
            return {"env": value.removeprefix(ENVIRONMENT)}
        self.dropped(where, f"contains a secret; put it into the variable {instead}")
        return {"env": instead}

    def numbers(
        self, entry: Table, names: Mapping[str, str], where: str, kind: Any, why: str
    ) -> Table:
        """Return the positive numbers of an entry under our names; report the other values."""
        found: Table = {}
        for name, own in names.items():
            value = entry.get(name)
            if isinstance(value, kind) and not isinstance(value, bool) and value > 0:
                found[own] = value
            elif value is not None:
                self.dropped(f"{where}.{name}", why)
        return found

    def add_deployment(self, entry: Table, where: str) -> None:
        """Convert an entry of ``model_list``, or report why it is left out."""
        params = table(entry.get("litellm_params"), f"{where}.litellm_params")
        info = table(entry.get("model_info"), f"{where}.model_info")
        self.report_unknown(entry, "deployment", where)
        name, model = entry.get("model_name"), params.get("model")
        if not isinstance(name, str) or not isinstance(model, str) or not name or not model:
            self.dropped(where, "model_name and litellm_params.model are both needed")
            return
        # Without a prefix, models named "claude-..." are Anthropic's, all others OpenAI's.
        if "/" not in model:
            model = f"{'anthropic' if model.startswith('claude-') else 'openai'}/{model}"
        prefix, _, model = model.partition("/")
        if prefix == "openai":
            model = model.removeprefix("responses/")
        provider, mode = PROVIDERS.get(prefix), str(info.get("mode") or "")
        if mode not in ("", "chat", "completion", "responses"):
            self.dropped(where, f"mode {mode[:30]!r} is not served by the Messages API")
        elif provider is None:
            self.dropped(where, f"provider {prefix[:40]!r} is not supported")
        elif "/" in name and GLOB.search(model):
            self.dropped(where, "a glob with a provider prefix is not supported; list the models")
        elif upstream := self.upstream(prefix, provider, params, f"{where}.litellm_params"):
            where, is_glob = f"{where}.litellm_params", bool(GLOB.search(model))
            self.report_unknown(params, "params", where)
            self.report_unknown(info, "info", where.replace("litellm_params", "model_info"))
            for limit in ("rpm", "tpm"):
                if limit in params:
                    self.dropped(f"{where}.{limit}", "limits belong to teams and keys")
            order = {"weight": "weight", "order": "order"}
            positive = self.numbers(params, order, where, int, "expected a whole number above 0")
            target = Target(upstream, "*" if is_glob else model, *(
                positive.get(one, 1) for one in order
            ))  # fmt: skip
            self.routes.setdefault(name, []).append(target)
            if not is_glob:
                self.add_price(upstream, model, {**info, **params}, where)

    def upstream(self, prefix: str, provider: Provider, params: Table, where: str) -> str | None:
        """Return the name of the deployment's upstream; None if it cannot be converted."""
        base_url = self.base_url(params, where)
        if base_url is None:
            return None
        if prefix == "openai" and base_url and urlsplit(base_url).hostname != "api.openai.com":
            provider = COMPATIBLE
        if base_url and provider.tail and not base_url.endswith(provider.tail):
            base_url += provider.tail
        base_url = base_url or provider.base_url
        if not base_url:
            self.dropped(where, f"provider {prefix!r} needs an api_base")
            return None
        seconds = self.numbers(params, TIMEOUTS, where, int | float, "is not a number of seconds")
        fields: Table = {
            "dialect": provider.dialect,
            "base_url": base_url,
            "profile": provider.profile,
            "timeouts": seconds,
        }
        try:
            check_base_url(base_url, allow_http=False)
        except ValidationError:
            fields["allow_http"] = True
            text = "allow_http = true: the key is sent to a public host without encryption"
            self.changed(where, text)
        if params.get("api_key"):
            own_name = re.sub(r"[^A-Z0-9]+", "_", f"{prefix}_API_KEY".upper())
            fields["api_key"] = self.secret(params["api_key"], f"{where}.api_key", own_name)
        elif provider.key:
            fields["api_key"] = {"env": provider.key}
        name = first = re.sub(r"[^a-z0-9]+", "-", prefix.lower())
        number = 1
        while self.upstreams.setdefault(name, {"name": name, **fields}) != {"name": name, **fields}:
            number += 1
            name = f"{first}-{number}"
        return name

    def base_url(self, params: Table, where: str) -> str | None:
        """Return the base URL of a deployment; "" if it has none; None if it cannot be used."""
        url, where = params.get("api_base") or params.get("base_url") or "", f"{where}.api_base"
        if isinstance(url, str) and url.startswith(ENVIRONMENT):
            variable = url.removeprefix(ENVIRONMENT)
            url = self.environ.get(variable, "")
            if not url:
                self.dropped(where, f"{variable} is not set; set it and import again")
                return None
            self.changed(where, f"the value of {variable} was written into base_url")
        if url == "":
            return ""
        try:
            check_base_url(str(url), allow_http=True)
        except ValidationError:
            self.dropped(where, "is not a plain https://host/path, and may contain a secret")
            return None
        return str(url).rstrip("/")

    def add_price(self, upstream: str, model: str, costs: Table, where: str) -> None:
        figures = {}
        for name, own in PRICES.items():
            if name in costs:
                usd = _dollars(costs[name], times=1_000_000)
                if usd is None or usd != round(usd, 6):
                    self.dropped(f"{where}.{name}", "is not a price with at most six decimals")
                else:
                    figures[own] = usd
        if figures and not {"input", "output"} <= set(figures):
            self.dropped(where, "a price needs both input and output cost per token")
        elif figures:
            self.prices[upstream, model] = {
                "upstream": upstream, "model": model, "since": self.today, "usd": figures,
                "source": "LiteLLM config",
            }  # fmt: skip

    def route_tables(self, sections: Mapping[str, Table]) -> list[Table]:
        """Return the routes in the order in which LiteLLM matches model names.

        Exact names come before globs, longer globs before shorter ones. The targets of the
        fallbacks ``[{"a": ["b", "c"]}]`` are added to the route of model a. An alias is
        ``{"alias": "model"}`` or ``{"alias": {"model": "model", "hidden": true}}``.
        """
        no_route = "names a model that has no route"
        fallbacks: dict[str, list[str]] = {}
        for section in ("litellm_settings", "router_settings"):
            for entry, where in tables(sections[section].get("fallbacks"), f"{section}.fallbacks"):
                for name, others in entry.items():
                    listed = others if isinstance(others, list) else [others]
                    known = [str(other) for other in listed if str(other) in self.routes]
                    if len(known) < len(listed) or name not in self.routes:
                        self.dropped(f"{where}.{name}", no_route)
                    if name in self.routes:
                        fallbacks.setdefault(name, []).extend(known)
        names = sorted(self.routes, key=lambda name: (bool(GLOB.search(name)), -len(name)))
        found = [(name, name) for name in names]
        where = "router_settings.model_group_alias"
        aliases = table(sections["router_settings"].get("model_group_alias"), where)
        for alias, target in aliases.items():
            model = str(target.get("model") if isinstance(target, dict) else target)
            if model not in self.routes:
                self.dropped(f"{where}.{alias}", no_route)
            elif alias not in self.routes:
                found.append((str(alias), model))
        return [
            {"model": model, "targets": self.targets(name, fallbacks.get(name, ()))}
            for model, name in found
        ]

    def targets(self, name: str, fallbacks: Iterable[str]) -> list[Table]:
        own = sorted(self.routes[name], key=lambda target: target.order)
        first = [target for target in own if target.order == own[0].order]
        even, in_order = {target.weight for target in first} == {1}, len(first) == 1
        after = [target for target in own if target.order != own[0].order]
        after += [target for other in fallbacks for target in self.routes[other]]
        # a weight of 0: used only when other targets fail
        return [
            *(to.table(1 if in_order else EVEN_WEIGHT if even else to.weight) for to in first),
            *(to.table(1 if in_order else 0) for to in after),
        ]

    def add_teams(self, value: Any, where: str) -> None:
        for entry, at in tables(value, where):
            self.report_unknown(entry, "team", at)
            if name := self.name(entry.get("team_alias") or entry.get("team_id"), at):
                self.team_ids[str(entry.get("team_id") or name)] = name
                self.teams.setdefault(name, {"name": name}).update(self.shared_fields(entry, at))

    def add_keys(self, value: Any, where: str) -> None:
        for entry, at in tables(value, where):
            self.report_unknown(entry, "key", at)
            name = self.name(entry.get("key_alias") or entry.get("key_name"), at)
            if not name:
                continue
            team_id = entry.get("team_id")
            team = self.team_ids.get(str(team_id)) or (
                self.name(team_id, f"{at}.team_id") if team_id else ""
            )
            key = {"team": team or DEFAULT, "name": name, **self.shared_fields(entry, at)}
            if entry.get("key"):
                variable = re.sub(r"[^A-Z0-9]+", "_", f"{team or DEFAULT}_{name}".upper())
                key["secret"] = self.secret(entry["key"], f"{at}.key", f"BRIDGE_KEY_{variable}")
            self.put_key(key)

    def put_key(self, key: Table) -> None:
        self.teams.setdefault(key["team"], {"name": key["team"]})
        self.keys[key["team"], key["name"]] = key

    def shared_fields(self, entry: Table, where: str) -> Table:
        models = entry.get("models") or []
        models = models if isinstance(models, list) else [models]
        return {
            "models": [str(one) for one in models if one not in {"all-proxy-models", "*"}],
            "limits": self.numbers(entry, LIMITS, where, int, "expected a whole number above 0"),
            "budgets": self.budgets(entry, where),
        }

    def budgets(self, entry: Table, where: str) -> list[Table]:
        if entry.get("max_budget") is None:
            return []
        usd = _dollars(entry["max_budget"])
        if usd is None:
            self.dropped(f"{where}.max_budget", "is not an amount of US dollars")
            return []
        duration, where = str(entry.get("budget_duration") or ""), f"{where}.budget_duration"
        period = PERIODS.get(duration)
        if period is None:
            self.changed(where, "became a month; only day, week and month are supported")
        elif duration not in CALENDAR:
            self.changed(where, f"became a calendar {period} (UTC)")
        return [{"usd": round(usd, 6), "period": period or "month"}]

    def name(self, value: Any, where: str) -> str:
        """Return a name that is valid in bridge.toml; if there is none, report it and return ""."""
        text = str(value or "")
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:64]
        if not name:
            self.dropped(where, "has no name; give it an alias")
        elif name != text:
            self.changed(where, f"was renamed to {name!r}")
        return name


def _dollars(value: Any, times: int = 1) -> Decimal | None:
    """Return an amount that a column can store, up to its decimals; None for another value."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        usd = Decimal(str(value)) * times
        return usd if usd.is_finite() and 0 <= usd < 10**8 else None
    except InvalidOperation:
        return None
