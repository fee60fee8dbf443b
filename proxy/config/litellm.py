"""Convert a LiteLLM ``config.yaml`` into a bridge.toml, and report what was not converted.

A finding of the report contains the path of the entry and the reason, but not the value, which may
be a secret. Each entry of ``model_list`` (a deployment) becomes an upstream, a target of a route
and, if it has costs, a price. Teams, keys and budgets come from LiteLLM's settings or from lists in
its API format.
"""

import datetime as dt
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


def split_model(model: str) -> tuple[str, str]:
    """Split a LiteLLM model name such as ``azure/gpt-5`` into provider and model.

    Without a prefix, models named ``claude-...`` are Anthropic's, all others OpenAI's.
    """
    head, slash, name = model.partition("/")
    if slash:
        if head == "openai" and name.startswith("responses/"):
            return head, name.removeprefix("responses/")
        return head, name
    return ("anthropic" if model.startswith("claude-") else "openai"), model


DEPLOYMENT: Final = ("model_name", "litellm_params", "model_info")
PARAMS: Final = ("model", "api_base", "base_url", "api_key", "timeout", "stream_timeout", "weight",
                 "order", "rpm", "tpm")  # fmt: skip
INFO: Final = ("id", "mode", "base_model", "description", "max_tokens", "max_input_tokens",
               "max_output_tokens", "litellm_provider", "supports_vision",
               "supports_function_calling")  # fmt: skip
PRICES: Final[Mapping[str, str]] = {
    "input_cost_per_token": "input",
    "output_cost_per_token": "output",
    "cache_read_input_token_cost": "cache_read",
    "cache_creation_input_token_cost": "cache_write_5m",
}
TIMEOUTS: Final[Mapping[str, str]] = {"timeout": "total_s", "stream_timeout": "first_byte_s"}
SUPPORTED_MODES: Final = ("", "chat", "completion", "responses")
GLOB: Final = re.compile(r"[*?\[]")
MILLION: Final = 1_000_000


class Target(NamedTuple):
    upstream: str
    model: str
    weight: int
    order: int


class Deployments:
    """Collects the upstreams, routes and prices of deployments; equal upstreams become one."""

    def __init__(
        self, report: Report, today: dt.date, environ: Mapping[str, str] = os.environ
    ) -> None:
        self.report = report
        self.today = today
        self.environ = environ
        self.upstreams: dict[str, dict[str, Any]] = {}
        self.routes: dict[str, list[Target]] = {}
        self.prices: dict[tuple[str, str], dict[str, Any]] = {}

    def add(self, entry: dict[str, Any], where: str) -> None:
        """Convert one deployment, an entry of ``model_list``, or report why it is left out."""
        params = table(entry.get("litellm_params"), f"{where}.litellm_params")
        info = table(entry.get("model_info"), f"{where}.model_info")
        self.report.report_unknown(entry, DEPLOYMENT, where)
        name, model = entry.get("model_name"), params.get("model")
        if not isinstance(name, str) or not isinstance(model, str) or not name or not model:
            self.report.dropped(where, "model_name and litellm_params.model are both needed")
            return
        if (mode := str(info.get("mode") or "")) not in SUPPORTED_MODES:
            self.report.dropped(where, f"mode {mode[:30]!r} is not served by the Messages API")
            return
        prefix, upstream_model = split_model(model)
        provider = PROVIDERS.get(prefix)
        if provider is None:
            self.report.dropped(where, f"provider {prefix[:40]!r} is not supported")
            return
        if "/" in name and GLOB.search(upstream_model):
            self.report.dropped(
                where, "a glob with a provider prefix is not supported; list the models"
            )
            return
        params_path = f"{where}.litellm_params"
        upstream = self._upstream(prefix, provider, params, params_path)
        if upstream is None:
            return
        self.report.report_unknown(params, (*PARAMS, *PRICES), params_path)
        self.report.report_unknown(info, (*INFO, *PRICES), f"{where}.model_info")
        target_model = "*" if GLOB.search(upstream_model) else upstream_model
        self._target(name, upstream, target_model, params, params_path)
        if target_model != "*":
            self._price(upstream, target_model, {**info, **params}, params_path)

    def _upstream(
        self, prefix: str, provider: Provider, params: Mapping[str, Any], where: str
    ) -> str | None:
        """Return the name of the deployment's upstream; None if it cannot be converted."""
        base_url = self._base_url(params, where)
        if base_url is None:
            return None
        if prefix == "openai" and base_url and urlsplit(base_url).hostname != "api.openai.com":
            provider = COMPATIBLE
        if base_url and provider.tail and not base_url.endswith(provider.tail):
            base_url += provider.tail
        base_url = base_url or provider.base_url
        if not base_url:
            self.report.dropped(where, f"provider {prefix!r} needs an api_base")
            return None
        fields: dict[str, Any] = {
            "dialect": provider.dialect,
            "base_url": base_url,
            "profile": provider.profile,
            "timeouts": self._timeouts(params, where),
        }
        try:
            check_base_url(base_url, allow_http=False)
        except ValidationError:
            fields["allow_http"] = True
            self.report.changed(
                where, "allow_http = true: the key is sent to a public host without encryption"
            )
        own_name = re.sub(r"[^A-Z0-9]+", "_", f"{prefix}_API_KEY".upper())
        if params.get("api_key"):
            fields["api_key"] = self.report.secret(params["api_key"], f"{where}.api_key", own_name)
        elif provider.key:
            fields["api_key"] = {"env": provider.key}
        return self._name_of_upstream(re.sub(r"[^a-z0-9]+", "-", prefix.lower()), fields)

    def _name_of_upstream(self, prefix: str, fields: dict[str, Any]) -> str:
        """Return the name of the upstream with these fields; create it if there is none."""
        name, number = prefix, 1
        while name in self.upstreams:
            if self.upstreams[name] == {"name": name, **fields}:
                return name
            number += 1
            name = f"{prefix}-{number}"
        self.upstreams[name] = {"name": name, **fields}
        return name

    def _base_url(self, params: Mapping[str, Any], where: str) -> str | None:
        """Return the base URL of a deployment; "" if it has none; None if it cannot be used."""
        url = params.get("api_base") or params.get("base_url") or ""
        params_path = f"{where}.api_base"
        if isinstance(url, str) and url.startswith(ENVIRONMENT):
            variable = url.removeprefix(ENVIRONMENT)
            url = self.environ.get(variable, "")
            if not url:
                self.report.dropped(params_path, f"{variable} is not set; set it and import again")
                return None
            self.report.changed(params_path, f"the value of {variable} was written into base_url")
        if url == "":
            return ""
        try:
            check_base_url(str(url), allow_http=True)
        except ValidationError:
            self.report.dropped(
                params_path, "is not a plain https://host/path, and may contain a secret"
            )
            return None
        return str(url).rstrip("/")

    def _timeouts(self, params: Mapping[str, Any], where: str) -> dict[str, float]:
        found = {}
        for name, own_key in TIMEOUTS.items():
            seconds = params.get(name)
            if isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0:
                found[own_key] = seconds
            elif seconds is not None:
                self.report.dropped(f"{where}.{name}", "is not a number of seconds")
        return found

    def _target(
        self, name: str, upstream: str, model: str, params: Mapping[str, Any], where: str
    ) -> None:
        for limit in ("rpm", "tpm"):
            if limit in params:
                self.report.dropped(f"{where}.{limit}", "limits belong to teams and keys")
        weight, order = (_positive_int(params.get(each)) or 1 for each in ("weight", "order"))
        self.routes.setdefault(name, []).append(Target(upstream, model, weight, order))

    def _price(self, upstream: str, model: str, costs: Mapping[str, Any], where: str) -> None:
        figures = {}
        for name, own_key in PRICES.items():
            if name in costs:
                figures[own_key] = usd = _per_million(costs[name])
                if usd is None:
                    self.report.dropped(
                        f"{where}.{name}", "is not a price with at most six decimals"
                    )
        figures = {name: usd for name, usd in figures.items() if usd is not None}
        if not figures:
            return
        if not {"input", "output"} <= set(figures):
            self.report.dropped(where, "a price needs both input and output cost per token")
            return
        self.prices[upstream, model] = {
            "upstream": upstream,
            "model": model,
            "since": self.today,
            "usd": figures,
            "source": "LiteLLM config",
        }


def _positive_int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _per_million(value: Any) -> Decimal | None:
    """Convert USD per token to USD per million tokens.

    Returns None for a wrong value, or if the result has more than six decimals.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        usd = Decimal(str(value)) * MILLION
        fits = usd.is_finite() and 0 <= usd < 10**8 and usd == round(usd, 6)
    except InvalidOperation:
        return None
    return usd if fits else None


# The weight for equal shares; weights that are all 1 mean "try in order" in a bridge.toml.
EVEN_WEIGHT = 2


def route_tables(
    routes: Mapping[str, Sequence[Target]],
    fallbacks: Mapping[str, Sequence[str]],
    aliases: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return the ``[[routes]]`` tables in the order in which LiteLLM matches model names.

    Exact names come before globs, longer globs before shorter ones.
    """
    names = sorted(routes, key=lambda name: (bool(GLOB.search(name)), -len(name)))
    found = [(name, name) for name in names]
    found += [(alias, name) for alias, name in aliases.items() if alias not in routes]
    return [
        {"model": model, "targets": list(_targets(name, routes, fallbacks))}
        for model, name in found
    ]


def _targets(
    name: str, routes: Mapping[str, Sequence[Target]], fallbacks: Mapping[str, Sequence[str]]
) -> Iterator[dict[str, Any]]:
    own = sorted(routes[name], key=lambda target: target.order)
    first = [target for target in own if target.order == own[0].order]
    weights = {target.weight for target in first}
    in_order = len(first) == 1
    for target in first:
        weight = 1 if in_order else EVEN_WEIGHT if weights == {1} else target.weight
        yield _target_table(target, weight)
    after = [target for target in own if target.order != own[0].order]
    after += [target for other in fallbacks.get(name, ()) for target in routes[other]]
    for target in after:
        yield _target_table(target, 1 if in_order else 0)  # 0: used only when other targets fail


def _target_table(target: Target, weight: int) -> dict[str, Any]:
    return {"upstream": target.upstream, "model": target.model, "weight": weight}


def read_fallbacks(
    value: Any, where: str, routes: Mapping[str, Sequence[Target]], report: Report
) -> dict[str, list[str]]:
    """Convert fallbacks such as ``[{"a": ["b", "c"]}]``: model -> models to try if it fails.

    The targets of models b and c will be added to the route of model a.
    """
    found: dict[str, list[str]] = {}
    for place, entry in enumerate(tables(value, where)):
        for name, others in entry.items():
            at = f"{where}[{place}].{name}"
            listed = others if isinstance(others, list) else [others]
            known = [str(other) for other in listed if str(other) in routes]
            if len(known) < len(listed) or name not in routes:
                report.dropped(at, "names a model that has no route")
            if name in routes:
                found.setdefault(name, []).extend(known)
    return found


def read_aliases(
    value: Any, where: str, routes: Mapping[str, Sequence[Target]], report: Report
) -> dict[str, str]:
    """Convert ``{"alias": "model"}`` or ``{"alias": {"model": "model", "hidden": true}}``.

    Returns the model of each alias.
    """
    found = {}
    for alias, target in table(value, where).items():
        model = target.get("model") if isinstance(target, dict) else target
        if str(model) in routes:
            found[str(alias)] = str(model)
        else:
            report.dropped(f"{where}.{alias}", "names a model that has no route")
    return found


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
