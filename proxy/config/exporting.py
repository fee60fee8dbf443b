"""The database as a bridge.toml: what ``applyconfig`` would take to make it again.

Secrets are referred to, never written; a gateway key comes without one, since nobody stores it,
and so does an upstream whose secret is sealed in the database.
"""

import datetime as dt
import json
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from proxy.models import ApiKey, Budget, ConnectionReuse, Leaving, Price, Route, Team, Upstream

from .first_start import SANDBOXES

Table = Mapping[str, Any]


def export() -> str:
    """TOML text: upstreams, routes, prices, teams, keys and users' budgets; not the sandbox."""
    kinds: tuple[tuple[str, Iterable[Table]], ...] = (
        ("upstreams", map(_upstream, Upstream.objects.exclude(name__in=SANDBOXES))),
        ("routes", _routes()),
        ("prices", map(_price, Price.objects.select_related("upstream"))),
        ("teams", map(_team, Team.objects.all())),
        (
            "keys",
            map(_key, ApiKey.objects.filter(revoked=None, successor=None).select_related("team")),
        ),
        ("budgets", map(_of_user, Budget.objects.exclude(user=None).select_related("user"))),
    )
    return "\n".join(written(kind, table) for kind, tables in kinds for table in tables if table)


def _upstream(upstream: Upstream) -> Table:
    return {
        "name": upstream.name,
        "dialect": upstream.dialect,
        "base_url": upstream.base_url,
        "api_key": {} if upstream.is_sealed else upstream.secret,
        "profile": upstream.profile,
        "capabilities": upstream.capabilities,
        "timeouts": upstream.timeouts,
        "extra_body": upstream.extra_body,
        "when_client_leaves": None
        if upstream.when_client_leaves == Leaving.ABORT
        else upstream.when_client_leaves,
        "connection_reuse": None
        if upstream.connection_reuse == ConnectionReuse.SHARED
        else upstream.connection_reuse,
        "allow_http": upstream.allow_http or None,
        "enabled": None if upstream.enabled else False,
    }


def _routes() -> Iterator[Table]:
    for route in Route.objects.select_related("team").prefetch_related("targets__upstream"):
        targets = [
            {"upstream": target.upstream.name, "model": target.model, "weight": target.weight}
            for target in route.targets.all()
            if target.upstream.name not in SANDBOXES
        ]
        if targets:
            team = route.team.name if route.team else None
            yield {"model": route.model, "team": team, "targets": targets}


def _price(price: Price) -> Table:
    if price.upstream and price.upstream.name in SANDBOXES:
        return {}
    figures = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")
    return {
        "upstream": price.upstream.name if price.upstream else None,
        "model": price.model,
        "since": price.since,
        "usd": {name: getattr(price, name) for name in figures},
        "source": price.source,
    }


def _team(team: Team) -> Table:
    return {
        "name": team.name,
        "store": team.store,
        "retention_days": team.retention_days,
        "limits": team.limits,
        "models": team.models_allowed,
        "budgets": _budgets(Budget.objects.filter(team=team)),
    }


def _key(key: ApiKey) -> Table:
    return {
        "team": key.team.name,
        "name": key.name,
        "scopes": key.scopes,
        "expires": key.expires,
        "limits": key.limits,
        "models": key.models_allowed,
        "ip_allow": key.ip_allow,
        "options": key.options,
        "budgets": _budgets(Budget.objects.filter(key=key)),
    }


def _budgets(budgets: Iterable[Budget]) -> list[Table]:
    return [_budget(one) for one in budgets]


def _of_user(budget: Budget) -> Table:
    return {"user": str(budget.user), **_budget(budget)}


def _budget(one: Budget) -> Table:
    return {
        "usd": one.usd,
        "period": one.period,
        "zone": one.zone,
        "hard": one.hard,
        "webhook": one.webhook or None,
        "webhook_secret": one.webhook_secret or None,
        "emails": one.emails or None,
    }


def written(kind: str, table: Table) -> str:
    """One table of bridge.toml as text; what is absent or empty is left out."""
    lines = [f"{name} = {_value(value)}" for name, value in table.items() if not _absent(value)]
    return "\n".join((f"[[{kind}]]", *lines, ""))


def _absent(value: Any) -> bool:
    """What TOML cannot say, or need not: null and empty tables stand for the default."""
    return value is None or value in ({}, [], "")


def _value(value: Any) -> str:
    match value:
        case dict():
            pairs = (f"{_name(k)} = {_value(v)}" for k, v in value.items() if v is not None)
            return f"{{ {', '.join(pairs)} }}"
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case Decimal():
            return f'"{value.normalize():f}"'
        case dt.date():  # and date-times, which are dates too
            return value.isoformat()
        case _:
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _name(name: str) -> str:
    bare = name and name.replace("_", "").replace("-", "").isalnum() and name.isascii()
    return name if bare else json.dumps(name)
