"""Bring the database in line with a bridge.toml, all or nothing.

The plan is not computed beside the change: the change is made in a transaction, each step tells
what it did, and a dry run rolls back. So a plan cannot promise what applying would not do.
"""

from collections.abc import Iterable, Mapping

import msgspec
from django.db import transaction
from django.utils import timezone

from proxy.models import Price, Route, RouteTarget, Team, Upstream
from proxy.secrets import ConfigError

from . import schema
from .budgets import apply_budgets
from .first_start import SANDBOXES
from .keys import apply_keys
from .rows import Change, Rows


def apply(file: schema.BridgeFile, *, dry_run: bool = False) -> list[Change]:
    """Apply the file and return what changed. Raises ConfigError; then nothing has changed."""
    rows = Rows()
    with transaction.atomic():
        for step in STEPS:
            step(file, rows)
        if dry_run:
            transaction.set_rollback(True)
    return rows.changes


def _teams(file: schema.BridgeFile, rows: Rows) -> None:
    for place, entry in enumerate(file.teams):
        fields = {
            "store": entry.store,
            "retention_days": entry.retention_days,
            "limits": msgspec.to_builtins(entry.limits),
            "models_allowed": entry.models,
        }
        where = f"teams[{place}]"
        rows.put(Team, {"name": entry.name}, fields, where, entry.name)
    named = [entry.name for entry in file.teams]
    for team in Team.objects.filter(managed=True).exclude(name__in=named):
        rows.release(team, team.name, "kept for its records, no longer managed")


def _upstreams(file: schema.BridgeFile, rows: Rows) -> None:
    for place, entry in enumerate(file.upstreams):
        where = f"upstreams[{place}]"
        if entry.name in SANDBOXES:
            raise ConfigError(f"{where}.name: {entry.name!r} belongs to the built-in sandbox")
        fields = {
            "dialect": entry.dialect,
            "base_url": entry.base_url.rstrip("/"),
            "secret": entry.api_key.stored if entry.api_key else _sealed(entry, where),
            "profile": entry.profile or DEFAULT_PROFILES[entry.dialect],
            "capabilities": entry.capabilities,
            "timeouts": msgspec.to_builtins(entry.timeouts),
            "extra_body": entry.extra_body,
            "when_client_leaves": entry.when_client_leaves,
            "connection_reuse": entry.connection_reuse,
            "allow_http": entry.allow_http,
            "enabled": entry.enabled,
        }
        rows.put(Upstream, {"name": entry.name}, fields, where, entry.name)


def _sealed(entry: schema.Upstream, where: str) -> dict[str, str]:
    """A secret that was typed into the admin stays while the file names none and no new server."""
    row = Upstream.objects.filter(name=entry.name).first()
    if row is None or not row.is_sealed:
        return {}
    if row.base_url != entry.base_url.rstrip("/"):
        raise ConfigError(
            f"{where}.base_url: {entry.base_url!r}, but the stored secret of {entry.name!r} was "
            f"entered for {row.base_url!r}; name an api_key"
        )
    return dict(row.secret)


DEFAULT_PROFILES: Mapping[str, str] = {
    "responses": "generic",
    "chat": "generic",
    "anthropic": "anthropic",
}


def _routes(file: schema.BridgeFile, rows: Rows) -> None:
    wanted = set()
    for place, entry in enumerate(file.routes):
        where = f"routes[{place}]"
        team = rows.find(Team, entry.team, f"{where}.team") if entry.team else None
        name = f"{entry.model} of team {entry.team}" if team else entry.model
        identity = {"model": entry.model, "team": team}
        route = rows.put(Route, identity, {"position": place}, where, name)
        _targets(rows, route, entry.targets, where)
        wanted.add(route.pk)
    for route in Route.objects.filter(managed=True).exclude(pk__in=wanted):
        rows.delete(route, route.model)


def _targets(rows: Rows, route: Route, entries: Iterable[schema.Target], where: str) -> None:
    """Replace the route's targets if they differ in upstream, model, weight or order."""
    wanted = [
        (
            rows.find(Upstream, entry.upstream, f"{where}.targets[{place}].upstream"),
            "" if entry.model == "*" else entry.model,
            entry.weight,
        )
        for place, entry in enumerate(entries)
    ]
    current = list(route.targets.select_related("upstream"))
    if wanted == [(target.upstream, target.model, target.weight) for target in current]:
        return
    route.targets.all().delete()
    for position, (upstream, model, weight) in enumerate(wanted):
        RouteTarget.objects.create(
            route=route, upstream=upstream, model=model, weight=weight, position=position
        )
    told = ", ".join(f"{upstream} {model or '*'}" for upstream, model, _ in wanted)
    rows.tell("~" if current else "+", "targets of route", route.model, told)


def _prices(file: schema.BridgeFile, rows: Rows) -> None:
    wanted = set()
    for place, entry in enumerate(file.prices):
        where = f"prices[{place}]"
        upstream = None
        if entry.upstream:
            upstream = rows.find(Upstream, entry.upstream, f"{where}.upstream")
        identity = {"upstream": upstream, "model": entry.model, "since": entry.since}
        figures = msgspec.structs.asdict(entry.usd)
        name = f"{entry.upstream or '*'} {entry.model} since {entry.since}"
        before = Price.objects.filter(**identity).first()
        if before and _in_force(before) and figures != {n: getattr(before, n) for n in figures}:
            raise ConfigError(
                f"{where}.usd: the price of {name} is in force and never overwritten; "
                "add an entry with a later since"
            )
        fields = figures | {"source": entry.source}
        wanted.add(rows.put(Price, identity, fields, where, name).pk)
    for price in Price.objects.filter(managed=True).exclude(pk__in=wanted):
        if _in_force(price):
            rows.release(price, str(price), "kept: it is in force, no longer managed")
        else:
            rows.delete(price, str(price))


def _in_force(price: Price) -> bool:
    return price.since <= timezone.now().date()


def _upstreams_gone(file: schema.BridgeFile, rows: Rows) -> None:
    """Last, when the routes that the file no longer has are gone."""
    named = [entry.name for entry in file.upstreams]
    for upstream in Upstream.objects.filter(managed=True).exclude(name__in=named):
        route = Route.objects.filter(targets__upstream=upstream).first()
        if route:
            raise ConfigError(
                f"upstream {upstream.name!r} is gone from the file, "
                f"but route {route.model!r} of the admin still leads to it"
            )
        rows.delete(upstream, upstream.name)


STEPS = (_teams, apply_keys, apply_budgets, _upstreams, _routes, _prices, _upstreams_gone)
