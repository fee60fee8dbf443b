"""``model_list``: each deployment is an upstream, a target of a route, and perhaps a price."""

import datetime as dt
import os
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError

from proxy.models.routes import check_base_url

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
SPOKEN: Final = ("", "chat", "completion", "responses")  # modes that Messages can be served from
GLOB: Final = re.compile(r"[*?\[]")
MILLION: Final = 1_000_000


class Target(NamedTuple):
    upstream: str
    model: str
    weight: int
    order: int


class Deployments:
    """Reads one deployment after the other; upstreams that are the same are made once."""

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
        """One entry of ``model_list``; what cannot be served is reported and left out."""
        params = table(entry.get("litellm_params"), f"{where}.litellm_params")
        info = table(entry.get("model_info"), f"{where}.model_info")
        self.report.rest(entry, DEPLOYMENT, where)
        name, model = entry.get("model_name"), params.get("model")
        if not isinstance(name, str) or not isinstance(model, str) or not name or not model:
            self.report.dropped(where, "model_name and litellm_params.model are both needed")
            return
        if (mode := str(info.get("mode") or "")) not in SPOKEN:
            self.report.dropped(where, f"mode {mode[:30]!r} is not served by the Messages API")
            return
        word, upstream_model = split_model(model)
        provider = PROVIDERS.get(word)
        if provider is None:
            self.report.dropped(where, f"provider {word[:40]!r} is not spoken here")
            return
        if "/" in name and GLOB.search(upstream_model):
            self.report.dropped(
                where, "a glob whose prefix would have to be cut off; list the names"
            )
            return
        place = f"{where}.litellm_params"
        upstream = self._upstream(word, provider, params, place)
        if upstream is None:
            return
        self.report.rest(params, (*PARAMS, *PRICES), place)
        self.report.rest(info, (*INFO, *PRICES), f"{where}.model_info")
        sent = "*" if GLOB.search(upstream_model) else upstream_model
        self._target(name, upstream, sent, params, place)
        if sent != "*":
            self._price(upstream, sent, {**info, **params}, place)

    def _upstream(
        self, word: str, provider: Provider, params: Mapping[str, Any], where: str
    ) -> str | None:
        """The name of the upstream that this deployment needs; None: there can be none."""
        base_url = self._base_url(params, where)
        if base_url is None:
            return None
        if word == "openai" and base_url and urlsplit(base_url).hostname != "api.openai.com":
            provider = COMPATIBLE
        if base_url and provider.tail and not base_url.endswith(provider.tail):
            base_url += provider.tail
        base_url = base_url or provider.base_url
        if not base_url:
            self.report.dropped(where, f"provider {word!r} needs an api_base")
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
            self.report.changed(where, "allow_http = true: the key goes in clear to a public host")
        own_name = re.sub(r"[^A-Z0-9]+", "_", f"{word}_API_KEY".upper())
        if params.get("api_key"):
            fields["api_key"] = self.report.secret(params["api_key"], f"{where}.api_key", own_name)
        elif provider.key:
            fields["api_key"] = {"env": provider.key}
        return self._named(re.sub(r"[^a-z0-9]+", "-", word.lower()), fields)

    def _named(self, word: str, fields: dict[str, Any]) -> str:
        """The upstream with these fields: one that is there already, or a new one."""
        name, number = word, 1
        while name in self.upstreams:
            if self.upstreams[name] == {"name": name, **fields}:
                return name
            number += 1
            name = f"{word}-{number}"
        self.upstreams[name] = {"name": name, **fields}
        return name

    def _base_url(self, params: Mapping[str, Any], where: str) -> str | None:
        """The address, "" when the file names none, None when it is of no use."""
        given = params.get("api_base") or params.get("base_url") or ""
        place = f"{where}.api_base"
        if isinstance(given, str) and given.startswith(ENVIRONMENT):
            variable = given.removeprefix(ENVIRONMENT)
            given = self.environ.get(variable, "")
            if not given:
                self.report.dropped(place, f"{variable} is not set; set it and import again")
                return None
            self.report.changed(place, f"the value of {variable} was written into base_url")
        if given == "":
            return ""
        try:
            check_base_url(str(given), allow_http=True)
        except ValidationError:
            self.report.dropped(place, "no plain https://host/path; it may hold a secret")
            return None
        return str(given).rstrip("/")

    def _timeouts(self, params: Mapping[str, Any], where: str) -> dict[str, float]:
        found = {}
        for name, ours in TIMEOUTS.items():
            seconds = params.get(name)
            if isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0:
                found[ours] = seconds
            elif seconds is not None:
                self.report.dropped(f"{where}.{name}", "no number of seconds")
        return found

    def _target(
        self, name: str, upstream: str, model: str, params: Mapping[str, Any], where: str
    ) -> None:
        for limit in ("rpm", "tpm"):
            if limit in params:
                self.report.dropped(f"{where}.{limit}", "limits belong to teams and keys")
        weight, order = (_whole(params.get(each)) or 1 for each in ("weight", "order"))
        self.routes.setdefault(name, []).append(Target(upstream, model, weight, order))

    def _price(self, upstream: str, model: str, told: Mapping[str, Any], where: str) -> None:
        figures = {}
        for name, ours in PRICES.items():
            if name in told:
                figures[ours] = usd = _per_million(told[name])
                if usd is None:
                    self.report.dropped(f"{where}.{name}", "no price that can be kept exactly")
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


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _per_million(value: Any) -> Decimal | None:
    """USD per token as USD per million; None when six decimals cannot hold it."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        usd = Decimal(str(value)) * MILLION
        fits = usd.is_finite() and 0 <= usd < 10**8 and usd == round(usd, 6)
    except InvalidOperation:
        return None
    return usd if fits else None
