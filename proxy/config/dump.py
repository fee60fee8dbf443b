"""Write the configuration in the database as a bridge.toml that ``applyconfig`` accepts.

The file contains references to secrets, but no secrets. A gateway key has no such reference,
because the database has only the digest of its secret; an upstream whose secret is encrypted in the
database has no reference either.
"""

import datetime as dt
import json
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from proxy.ledger.transcripts.visible_text import INVISIBLE
from proxy.models import (
    ApiKey,
    Budget,
    ConnectionReuse,
    OnClientDisconnect,
    Price,
    Route,
    Team,
    Upstream,
    Webhook,
)
from proxy.models.setup.prices import DIMENSIONS
from proxy.models.setup.upstreams import SANDBOXES, SEALED

from .load import starter_prices
from .schema import Figures

Table = Mapping[str, Any]


def export(*, starter: bool = False) -> str:
    """Return the configuration as TOML, without the built-in sandbox upstreams.

    ``starter``: also the prices that the first start created and that nobody changed.
    """
    kinds: tuple[tuple[str, Iterable[Table]], ...] = (
        ("upstreams", map(_upstream, Upstream.objects.exclude(name__in=SANDBOXES))),
        ("routes", _routes()),
        ("prices", _prices(starter=starter)),
        ("teams", map(_team, Team.objects.all())),
        (
            "keys",
            map(
                _key,
                ApiKey.objects.filter(revoked=None, successor=None).select_related("team", "user"),
            ),
        ),
        ("budgets", map(_user_budget, Budget.objects.exclude(user=None).select_related("user"))),
        ("webhooks", map(_webhook, Webhook.objects.select_related("team"))),
    )
    return "\n".join(dump_table(kind, table) for kind, tables in kinds for table in tables if table)


def _upstream(upstream: Upstream) -> Table:
    return {
        "name": upstream.name,
        "dialect": upstream.dialect,
        "base_url": upstream.base_url,
        "api_key": {} if upstream.has_encrypted_secret else upstream.secret,
        "credentials": upstream.credentials,
        "api_version": upstream.api_version,
        "profile": upstream.profile,
        "capabilities": upstream.capabilities,
        "model_capabilities": upstream.model_capabilities or None,
        "timeouts": upstream.timeouts,
        "extra_body": upstream.extra_body,
        "when_client_leaves": None
        if upstream.when_client_leaves == OnClientDisconnect.ABORT
        else upstream.when_client_leaves,
        "connection_reuse": None
        if upstream.connection_reuse == ConnectionReuse.SHARED
        else upstream.connection_reuse,
        "connection": upstream.connection or None,
        "allow_http": upstream.allow_http or None,
        "enabled": None if upstream.enabled else False,
    }


def _routes() -> Iterator[Table]:
    for route in Route.objects.select_related("team").prefetch_related("targets__upstream"):
        targets = [
            {
                "upstream": target.upstream.name,
                "model": target.model,
                "weight": target.weight,
                **({"when": target.when} if target.when else {}),
            }
            for target in route.targets.all()
            if target.upstream.name not in SANDBOXES
        ]
        if targets:
            team = route.team.name if route.team else None
            yield {"model": route.model, "team": team, "targets": targets}


def _prices(*, starter: bool) -> Iterator[Table]:
    shipped = {
        (entry.model, entry.since, entry.source): msgspec.structs.asdict(entry.usd)
        for entry in starter_prices()
    }
    for price in Price.objects.select_related("upstream"):
        figures = {name: getattr(price, name) for name in Figures.__struct_fields__}
        is_starter = (
            price.upstream is None
            and not price.variant
            and not price.managed
            and shipped.get((price.model, price.since, price.source)) == figures
        )
        if (is_starter and not starter) or (price.upstream and price.upstream.name in SANDBOXES):
            continue
        yield {
            "upstream": price.upstream.name if price.upstream else None,
            "model": price.model,
            **{name: getattr(price, name) or None for name in DIMENSIONS},
            "since": price.since,
            "usd": figures,
            "source": price.source,
        }


def _team(team: Team) -> Table:
    return {
        "name": team.name,
        "store": team.store,
        "retention_days": team.retention_days,
        "limits": team.limits,
        "member_keys": team.member_keys,
        "models": team.models_allowed,
        "budgets": _budgets(Budget.objects.filter(team=team)),
    }


def _key(key: ApiKey) -> Table:
    return {
        "team": key.team.name,
        "name": key.name,
        "user": key.user.get_username() if key.user else None,
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


def _user_budget(budget: Budget) -> Table:
    return {"user": str(budget.user), **_budget(budget)}


def _budget(one: Budget) -> Table:
    return {
        "usd": one.usd,
        "period": one.period,
        "zone": one.zone,
        "models": one.models_covered,
        "hard": one.hard,
        "emails": one.emails or None,
    }


def _webhook(one: Webhook) -> Table:
    return {
        "name": one.name,
        "url": one.url,
        "team": one.team.name if one.team else None,
        "events": one.events,
        "secret": {} if SEALED in one.secret else one.secret,
        "previous_secret": {} if SEALED in one.previous_secret else one.previous_secret,
        "enabled": None if one.enabled else False,
    }


def dump_table(kind: str, table: Table) -> str:
    """Return one table of bridge.toml as TOML text, without absent and empty values."""
    lines = [
        f"{name} = {toml_value(value)}" for name, value in table.items() if not _is_absent(value)
    ]
    return "\n".join((f"[[{kind}]]", *lines, ""))


def _is_absent(value: Any) -> bool:
    """Return whether to leave a value out: TOML has no null, and empty values are the defaults."""
    return value is None or value in ({}, [], "")


def toml_value(value: Any) -> str:
    """Return a value as TOML writes it."""
    match value:
        case dict():
            pairs = (f"{_name(k)} = {toml_value(v)}" for k, v in value.items() if v is not None)
            return f"{{ {', '.join(pairs)} }}"
        case list():
            return f"[{', '.join(map(toml_value, value))}]"
        case Decimal():
            return f'"{value.normalize():f}"'
        case dt.date():  # matches datetime too, which is a subclass
            return value.isoformat()
        case _:
            text = json.dumps(value, ensure_ascii=False)
            return INVISIBLE.sub(
                lambda found: "".join(f"\\U{ord(char):08X}" for char in found[0]), text
            )


def _name(name: str) -> str:
    bare = name and name.replace("_", "").replace("-", "").isalnum() and name.isascii()
    return name if bare else json.dumps(name)
