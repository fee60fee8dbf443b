"""Apply the configuration file bridge.toml to the database, in one transaction.

The plan is the list of changes that the transaction made. A dry run makes the same changes and
rolls the transaction back, so its plan has exactly the changes that applying the file would make.
"""

from collections.abc import Iterable, Mapping

import msgspec
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from proxy.models import Price, Route, RouteTarget, Team, Upstream, Webhook
from proxy.models.setup.prices import DIMENSIONS
from proxy.models.setup.upstreams import SANDBOXES
from proxy.secrets import ConfigError, mistakes_error

from . import schema
from .budgets import apply_budgets
from .draft import Draft
from .keys import apply_keys
from .load import MAX_MISTAKES
from .row_writer import Change, ConfigWriter


def apply(file: schema.BridgeFile, *, dry_run: bool = False) -> list[Change]:
    """Write the configuration file to the database and return the changes.

    Raises ConfigError, which lists all mistakes; then nothing has changed.
    """
    rows = ConfigWriter()
    with transaction.atomic():
        for step in STEPS:
            step(file, rows)
        if rows.mistakes:
            raise mistakes_error(rows.mistakes[:MAX_MISTAKES])
        if dry_run:
            transaction.set_rollback(True)
    return rows.changes


def all_mistakes(draft: Draft) -> list[str]:
    """Return the mistakes of a file: of its values, and of the entries whose values can be read."""
    rows = ConfigWriter(draft.wrong)
    with transaction.atomic():
        for step in STEPS:
            if step is not _delete_upstreams:  # an upstream that was left out is not gone
                step(draft.file, rows)
        transaction.set_rollback(True)
    return [*draft.mistakes, *map(draft.with_places_of_file, rows.mistakes)]


def _teams(file: schema.BridgeFile, rows: ConfigWriter) -> None:
    for place, entry in enumerate(file.teams):
        fields = {
            "store": entry.store,
            "retention_days": entry.retention_days,
            "limits": msgspec.to_builtins(entry.limits),
            "member_keys": msgspec.to_builtins(entry.member_keys),
            "models_allowed": entry.models,
        }
        with rows.entry("team", entry.name):
            rows.put(Team, {"name": entry.name}, fields, f"teams[{place}]", entry.name)
    named = [entry.name for entry in file.teams]
    for team in Team.objects.filter(managed=True).exclude(name__in=named):
        rows.unmanage(team, team.name, "stays because of its records, no longer managed")


def _upstreams(file: schema.BridgeFile, rows: ConfigWriter) -> None:
    for place, entry in enumerate(file.upstreams):
        with rows.entry("upstream", entry.name):
            _upstream(entry, rows, f"upstreams[{place}]")


def _upstream(entry: schema.Upstream, rows: ConfigWriter, where: str) -> None:
    if entry.name in SANDBOXES:
        raise ConfigError(f"{where}.name: {entry.name!r} belongs to the built-in sandbox")
    fields = {
        "dialect": entry.dialect,
        "base_url": entry.base_url.rstrip("/"),
        "secret": entry.api_key.stored if entry.api_key else _stored_secret(entry, where),
        "credentials": msgspec.to_builtins(entry.credentials or {}),
        "api_version": entry.api_version,
        "profile": entry.profile or DEFAULT_PROFILES[entry.dialect],
        "capabilities": entry.capabilities,
        "model_capabilities": entry.model_capabilities,
        "timeouts": msgspec.to_builtins(entry.timeouts),
        "extra_body": entry.extra_body,
        "when_client_leaves": entry.when_client_leaves,
        "connection_reuse": entry.connection_reuse,
        "connection": msgspec.to_builtins(entry.connection),
        "allow_http": entry.allow_http,
        "enabled": entry.enabled,
    }
    rows.put(Upstream, {"name": entry.name}, fields, where, entry.name)


def _stored_secret(entry: schema.Upstream, where: str) -> dict[str, str]:
    """Return the encrypted secret that the admin stored for this upstream, or ``{}``.

    The stored secret stays in use while the file has no ``api_key`` for the upstream. The secret
    was entered for one base URL, so another ``base_url`` in the file raises ConfigError.
    """
    row = Upstream.objects.filter(name=entry.name).first()
    if row is None or not row.has_encrypted_secret or entry.credentials:
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


def _routes(file: schema.BridgeFile, rows: ConfigWriter) -> None:
    expected = set()
    for place, entry in enumerate(file.routes):
        with rows.entry("route", entry.model):
            expected.add(_route(entry, rows, place).pk)
    for route in Route.objects.filter(managed=True).exclude(pk__in=expected):
        rows.delete(route, route.model)


def _route(entry: schema.Route, rows: ConfigWriter, place: int) -> Route:
    where = f"routes[{place}]"
    team = rows.find(Team, entry.team, f"{where}.team") if entry.team else None
    name = f"{entry.model} of team {entry.team}" if team else entry.model
    route = rows.put(Route, {"model": entry.model, "team": team}, {"position": place}, where, name)
    _targets(rows, route, entry.targets, where)
    return route


def _targets(
    rows: ConfigWriter, route: Route, entries: Iterable[schema.Target], where: str
) -> None:
    """Replace the route's targets if the file's differ in any field or in order."""
    expected = []
    for place, entry in enumerate(entries):
        at = f"{where}.targets[{place}]"
        with rows.entry("target", at):
            upstream = rows.find(Upstream, entry.upstream, f"{at}.upstream")
            model = "" if entry.model == "*" else entry.model
            expected.append((upstream, model, entry.weight, msgspec.to_builtins(entry.when)))
    current = list(route.targets.select_related("upstream"))
    if expected == [(to.upstream, to.model, to.weight, to.when) for to in current]:
        return
    route.targets.all().delete()
    for position, (upstream, model, weight, when) in enumerate(expected):
        RouteTarget.objects.create(
            route=route,
            upstream=upstream,
            model=model,
            weight=weight,
            when=when,
            position=position,
        )
    detail = ", ".join(f"{upstream} {model or '*'}" for upstream, model, *_ in expected)
    rows.add_plan_line("~" if current else "+", "targets of route", route.model, detail)


def _prices(file: schema.BridgeFile, rows: ConfigWriter) -> None:
    expected = set()
    for place, entry in enumerate(file.prices):
        with rows.entry("price", entry.model):
            expected.add(_price(entry, rows, f"prices[{place}]").pk)
    left_out = Price.objects.filter(managed=True).exclude(pk__in=expected)
    for price in left_out.exclude(upstream__in=_upstreams_left_out(file)):
        if _is_in_force(price):
            why = "stays because it is in force, no longer managed"
            rows.unmanage(price, _price_name(price), why)
        else:
            rows.delete(price, _price_name(price))


def _price(entry: schema.Price, rows: ConfigWriter, where: str) -> Price:
    upstream = None
    if entry.upstream:
        upstream = rows.find(Upstream, entry.upstream, f"{where}.upstream")
    dimensions = {name: getattr(entry, name) for name in DIMENSIONS}
    identity = {"upstream": upstream, "model": entry.model, **dimensions, "since": entry.since}
    figures = msgspec.structs.asdict(entry.usd)
    name = _price_name(entry)
    before = Price.objects.filter(**identity).first()
    if before and _is_in_force(before) and figures != {n: getattr(before, n) for n in figures}:
        raise ConfigError(
            f"{where}.usd: the price of {name} is in force and never overwritten; "
            "add an entry with a later since"
        )
    return rows.put(Price, identity, figures | {"source": entry.source}, where, name)


def _price_name(price: Price | schema.Price) -> str:
    named = [f"{name}={value}" for name in DIMENSIONS if (value := getattr(price, name))]
    return " ".join([str(price.upstream or "*"), price.model, *named, f"since {price.since}"])


def _is_in_force(price: Price) -> bool:
    return price.since <= timezone.now().date()


def _webhooks(file: schema.BridgeFile, rows: ConfigWriter) -> None:
    for place, entry in enumerate(file.webhooks):
        with rows.entry("webhook", entry.name):
            _webhook(entry, rows, f"webhooks[{place}]")
    named = [entry.name for entry in file.webhooks]
    for webhook in Webhook.objects.filter(managed=True).exclude(name__in=named):
        rows.delete(webhook, webhook.name)


def _webhook(entry: schema.Webhook, rows: ConfigWriter, where: str) -> None:
    stored = Webhook.objects.filter(name=entry.name).first()
    fields = {
        "url": entry.url,
        "team": rows.find(Team, entry.team, f"{where}.team") if entry.team else None,
        "events": list(entry.events),
        "secret": entry.secret.stored if entry.secret else stored.secret if stored else {},
        "enabled": entry.enabled,
    }
    if entry.previous_secret is not None:
        fields |= {"previous_secret": entry.previous_secret.stored, "previous_until": None}
    elif entry.secret is not None:
        fields |= {"previous_secret": {}, "previous_until": None}
    rows.put(Webhook, {"name": entry.name}, fields, where, entry.name)


def _upstreams_left_out(file: schema.BridgeFile) -> QuerySet[Upstream]:
    """Return the managed upstreams that the file no longer has."""
    named = [entry.name for entry in file.upstreams]
    return Upstream.objects.filter(managed=True).exclude(name__in=named)


def _delete_upstreams(file: schema.BridgeFile, rows: ConfigWriter) -> None:
    """Delete the managed upstreams that the file no longer has, with their prices.

    This step must be the last, because the routes to these upstreams must be deleted first.
    """
    priced = [entry.upstream for entry in file.prices]
    for upstream in _upstreams_left_out(file):
        route = Route.objects.filter(targets__upstream=upstream).first()
        if route:
            rows.mistakes.append(
                f"upstream {upstream.name!r} is gone from the file, "
                f"but route {route.model!r} of the admin still has it as a target"
            )
        elif upstream.name in priced:
            place = priced.index(upstream.name)
            rows.mistakes.append(
                f"prices[{place}].upstream: upstream {upstream.name!r} is gone from the file"
            )
        else:
            for price in Price.objects.filter(upstream=upstream):
                rows.delete(price, _price_name(price))
            rows.delete(upstream, upstream.name)


STEPS = (
    _teams, apply_keys, apply_budgets, _upstreams, _routes, _prices, _webhooks, _delete_upstreams,
)  # fmt: skip
