"""Convert ``model_list`` of a LiteLLM configuration.

Each entry (a deployment) becomes an upstream, a target of a route and, if it has costs, a price.
"""

import datetime as dt
import os
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError

from proxy.models.setup.upstreams import check_base_url

from .providers import COMPATIBLE, PROVIDERS, Provider, split_model
from .report import ENVIRONMENT, Report, table

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
