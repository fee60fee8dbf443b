"""Apply the configuration file bridge.toml to the database, in one transaction.

The plan is the list of changes that the transaction made. A dry run makes the same changes and
rolls the transaction back, so its plan has exactly the changes that applying the file would make.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.db import transaction
from django.utils import timezone

from proxy.audit_log.bulk import Batch, in_bulk
from proxy.decode_errors import did_you_mean
from proxy.models import (
    ApiKey,
    Budget,
    Price,
    Revision,
    Route,
    RouteTarget,
    Team,
    Upstream,
    Webhook,
)
from proxy.models.setup.keys import Stored, secret_columns
from proxy.models.setup.prices import DIMENSIONS, FIGURES
from proxy.models.setup.webhooks import MAX_WEBHOOKS
from proxy.secrets import ConfigError, mistakes_error, resolve

from .load import MAX_MISTAKES, BridgeFile, Entry, price_name, route_name
from .rows import Change, Plan, Table

SECRET_LENGTH: Final = 32
"""Minimum characters of a gateway key that the operator supplies."""


def apply(file: BridgeFile, *, dry_run: bool = False) -> list[Change]:
    """Write the configuration file to the database and return the changes.

    Raises ConfigError, which lists all mistakes; then nothing has changed.
    """
    with transaction.atomic():
        with Revision.bumped_once(), in_bulk() as batch:
            plan = _Apply(file, batch).run()
            if plan.mistakes:
                raise mistakes_error(plan.mistakes[:MAX_MISTAKES])
        if dry_run:
            transaction.set_rollback(True)
    return plan.changes


def all_mistakes(file: BridgeFile) -> list[str]:
    """Return the mistakes of a file: of its values, and of the entries whose values can be read."""
    with transaction.atomic():
        with Revision.bumped_once(), in_bulk() as batch:
            plan = _Apply(file, batch).run()
        transaction.set_rollback(True)
    return [*file.mistakes, *plan.mistakes]


class _Apply:
    """The steps, in the order in which rows refer to each other."""

    def __init__(self, file: BridgeFile, batch: Batch) -> None:
        self.file, self.batch, self.plan = file, batch, Plan(batch, file.wrong)
        self.teams = Table(self.plan, Team.objects.all())
        self.keys = Table(self.plan, ApiKey.objects.select_related("team"))
        self.upstreams = Table(self.plan, Upstream.objects.all())
        entries = (*file.keys, *file.budgets)
        names = {name for entry in entries if (name := entry["user"]) is not None}
        users = get_user_model().objects.filter(username__in=names)
        self.users = {user.get_username(): user for user in users}

    def run(self) -> Plan:
        self.write_teams()
        self.write_keys()
        self.write_budgets()
        self.write_upstreams()
        self.write_routes()
        self.write_prices()
        self.batch.write()  # the webhooks of before get the events
        self.write_webhooks()
        if not self.file.wrong:  # an upstream with a mistake is not gone from the file
            self.delete_upstreams()
        return self.plan

    def team(self, entry: Entry) -> Team | None:
        """Return the team of an entry, if it has one. Raises ConfigError for an unknown team."""
        name = entry["team"]
        if name is None:
            return None
        team: Team = self.plan.find("team", self.teams.rows, name, f"{entry.where}.team")
        return team

    def user(self, name: str, where: str) -> Any:
        if name not in self.users:
            find_user(name, where)
        return self.users[name]

    def write_teams(self) -> None:
        for entry in self.file.teams:
            values = {name: value for name, value in entry.values.items() if name != "budgets"}
            with self.plan.entry("team", entry["name"]):
                self.teams.put(entry["name"], values, entry.where)
        for name, team in self.teams.left_out():
            self.teams.unmanage(team, name, "stays because of its records, no longer managed")
        self.teams.write()

    def write_keys(self) -> None:
        """Write the keys. A secret that was revoked or rotated elsewhere is not used again."""
        by_digest = {bytes(key.digest): key for key in self.keys.rows.values() if key.digest}
        replaced: list[tuple[ApiKey, Stored, datetime | None]] = []
        freed: list[int] = []
        for entry in self.file.keys:
            name = f"{entry['team']}/{entry['name']}"
            with self.plan.entry("key", name):
                team = self.team(entry)
                before = self.keys.rows.get(name)
                given = self._given_secret(entry, name, before, by_digest)
                values = {
                    **{
                        column: value
                        for column, value in entry.values.items()
                        if column not in {"budget_set", "secret_reference"}
                    },
                    "team": team,
                    "user": entry["user"] and self.user(entry["user"], f"{entry.where}.user"),
                    **given,
                }
                old, revoked = (before.stored_secret, before.revoked) if before else ({}, None)
                reissued = bool(given) and given != old
                dropped = before is not None and before.dropped
                if revoked and (dropped or reissued):
                    values |= {"revoked": None, "dropped": False}
                elif revoked:
                    text = "stays revoked; a new secret in the file activates it again"
                    self.plan.add("=", "key", name, f"revoked {_day(revoked)}: {text}")
                key = self.keys.put(name, values, entry.where)
                if reissued:
                    by_digest[given["digest"]] = key
                if reissued and old:
                    freed.append(key.pk)
                    if revoked and not dropped:
                        replaced.append((key, old, revoked))
                    else:  # another key of the file may have the secret now
                        by_digest.pop(old["digest"], None)
        for name, key in self.keys.left_out():
            revoked = key.revoked or timezone.now()
            self.keys.unmanage(key, name, "revoked", revoked=revoked, dropped=key.revoked is None)
        if freed:  # two keys may exchange their secrets
            ApiKey.objects.filter(pk__in=freed).update(digest=None)
        self.keys.write()
        for key, old, revoked in replaced:
            key.retire(old, timezone.now(), revoked)  # the old secret must not be valid again

    def _given_secret(
        self, entry: Entry, name: str, before: ApiKey | None, by_digest: Mapping[bytes, ApiKey]
    ) -> Stored:
        """Return the columns of the secret in the file; empty if it must not be used."""
        if not entry["secret_reference"]:
            return {}
        try:
            secret = resolve(entry["secret_reference"])
        except ConfigError as missing:
            raise ConfigError(f"{entry.where}.secret: {missing}") from None
        if len(secret) < SECRET_LENGTH:
            raise ConfigError(f"{entry.where}.secret: has fewer than {SECRET_LENGTH} characters")
        given = secret_columns(secret)
        other = by_digest.get(given["digest"])
        if other is None or other is before:
            return given
        if before is None or other.successor_id != before.pk:
            raise ConfigError(f"{entry.where}.secret: key {other} has the same secret")
        verb, at = ("revoked", other.revoked) if other.revoked else ("rotated", other.created)
        text = f"the file still has the secret that was {verb} on {_day(at)}: put the new one in"
        self.plan.add("=", "key", name, text)
        return {}

    def write_budgets(self) -> None:
        rows = Budget.objects.select_related("team", "key__team", "user")
        budgets = Table(self.plan, rows, _budget_key)
        for entry, kind, name in self.file.all_budgets():
            with self.plan.entry("budget", entry.where):
                owners = {"team": None, "key": None, "user": None}
                where = entry.where if "team" not in entry.values else f"{entry.where}.{kind}"
                if kind == "user":
                    owners["user"] = self.user(name, where)
                else:
                    table = self.teams if kind == "team" else self.keys
                    owners[kind] = self.plan.find(kind, table.rows, name, where)
                key = (kind, name, entry["period"], entry["zone"], *entry["models_covered"])
                budgets.put(key, {**entry.values, **owners}, entry.where, _budget_label(key))
        budgets.delete_left_out(_budget_label)
        budgets.write()

    def write_upstreams(self) -> None:
        for entry in self.file.upstreams:
            self.upstreams.named.add(entry["name"])  # with a mistake, it is not gone either
            with self.plan.entry("upstream", entry["name"]):
                row = self.upstreams.rows.get(entry["name"])
                values = dict(entry.values)
                if (
                    row
                    and row.has_encrypted_secret
                    and not (values["secret"] or values["credentials"])
                ):
                    # the secret that the admin stored stays in use, for the same base URL
                    if row.base_url != values["base_url"]:
                        raise ConfigError(
                            f"{entry.where}.base_url: {values['base_url']!r}, but the stored "
                            f"secret of {row.name!r} was entered for {row.base_url!r}; "
                            "name an api_key"
                        )
                    values["secret"] = row.secret
                self.upstreams.put(entry["name"], values, entry.where)
        self.upstreams.write()

    def write_routes(self) -> None:
        """Write the routes. The targets are replaced if they differ in any field or in order."""
        routes = Table(self.plan, Route.objects.select_related("team"), _route_key)
        targets = Table(self.plan, RouteTarget.objects.select_related("route", "upstream"), id)
        stored: dict[int, list[RouteTarget]] = {}
        for row in targets.rows.values():
            stored.setdefault(row.route_id, []).append(row)
        obsolete: list[RouteTarget] = []
        new: list[RouteTarget] = []
        for place, entry in enumerate(self.file.routes):
            with self.plan.entry("route", entry["model"]):
                team = self.team(entry)
                key = (entry["model"], team and team.name)
                values = {"model": entry["model"], "team": team, "position": place}
                route = routes.put(key, values, entry.where, route_name(entry))
                current = stored.get(route.pk, [])
                expected = self._targets(entry)
                if expected == [(to.upstream, to.model, to.weight, to.when) for to in current]:
                    continue
                obsolete += current
                new += (
                    RouteTarget(
                        route=route, upstream=to, model=model, weight=weight, when=when, position=at
                    )
                    for at, (to, model, weight, when) in enumerate(expected)
                )
                detail = ", ".join(f"{to} {model or '*'}" for to, model, *_ in expected)
                sign = "~" if current else "+"
                self.plan.add(sign, "targets of route", entry["model"], detail)  # type: ignore[arg-type]
        for _, route in routes.left_out():
            obsolete += stored.get(route.pk, [])
        targets.delete(obsolete)
        routes.delete_left_out(lambda key: str(key[0]))
        routes.write()
        for target in new:
            target.route = target.route  # whose primary key is known now
        targets.create(new)

    def _targets(self, entry: Entry) -> list[tuple[Upstream, str, int, Any]]:
        expected = []
        for place, target in enumerate(entry["targets"]):
            at = f"{entry.where}.targets[{place}]"
            with self.plan.entry("target", at):
                upstream = self.plan.find(
                    "upstream", self.upstreams.rows, target["upstream"], f"{at}.upstream"
                )
                expected.append((upstream, target["model"], target["weight"], target["when"]))
        return expected

    def write_prices(self) -> None:
        prices = Table(self.plan, Price.objects.select_related("upstream"), _price_key)
        for entry in self.file.prices:
            with self.plan.entry("price", entry["model"]):
                name, upstream = price_name(entry), entry["upstream"]
                if upstream is not None:
                    at = f"{entry.where}.upstream"
                    upstream = self.plan.find("upstream", self.upstreams.rows, upstream, at)
                values = {**entry.values, "upstream": upstream}
                before = prices.rows.get(name)
                if (
                    before
                    and _is_in_force(before)
                    and any(getattr(before, figure) != values[figure] for figure in FIGURES)
                ):
                    raise ConfigError(
                        f"{entry.where}.usd: the price of {name} is in force and never "
                        "overwritten; add an entry with a later since"
                    )
                prices.put(name, values, entry.where)
        self.prices, gone = prices, []
        upstreams_gone = {row.pk for _, row in self.upstreams.left_out()}
        for name, price in prices.left_out():
            if price.upstream_id in upstreams_gone:
                continue
            if _is_in_force(price):
                why = "stays because it is in force, no longer managed"
                prices.unmanage(price, name, why)
            else:
                self.plan.add("-", "price", name)
                gone.append(price)
        prices.delete(gone)
        prices.write()

    def write_webhooks(self) -> None:
        webhooks = Table(self.plan, Webhook.objects.select_related("team"))
        for entry in self.file.webhooks:
            with self.plan.entry("webhook", entry["name"]):
                values = {**entry.values, "team": self.team(entry)}
                stored = webhooks.rows.get(entry["name"])
                if values["previous_secret"] or values["secret"]:
                    values["previous_until"] = None
                else:
                    del values["previous_secret"]
                if not values["secret"] and stored:
                    values["secret"] = stored.secret
                webhooks.put(entry["name"], values, entry.where)
                if len(webhooks.rows) > MAX_WEBHOOKS:
                    raise ConfigError(f"{entry.where}: there are {MAX_WEBHOOKS} webhooks already")
        webhooks.delete_left_out()
        webhooks.write()

    def delete_upstreams(self) -> None:
        """Delete the managed upstreams that the file no longer has, with their prices."""
        gone = self.upstreams.left_out()
        targets = RouteTarget.objects.filter(upstream__in=[row.pk for _, row in gone])
        used = {target.upstream_id: target.route for target in targets.select_related("route")}
        priced = {entry["upstream"]: entry.where for entry in reversed(self.file.prices)}
        deleted = []
        for name, row in gone:
            if route := used.get(row.pk):
                self.plan.mistakes.append(
                    f"upstream {name!r} is gone from the file, "
                    f"but route {route.model!r} of the admin still has it as a target"
                )
            elif name in priced:
                self.plan.mistakes.append(
                    f"{priced[name]}.upstream: upstream {name!r} is gone from the file"
                )
            else:
                deleted.append(row)
                for price in self.prices.rows:
                    if price.startswith(f"{name} "):
                        self.plan.add("-", "price", price)
                self.plan.add("-", "upstream", name)
        self.upstreams.delete(deleted)


def find_user(name: str, where: str) -> Any:
    """Return the user with this name. Raises ConfigError, which suggests a similar name."""
    users = get_user_model().objects
    found = users.filter(username=name).first()
    if found is None:
        known = users.values_list("username", flat=True)
        raise ConfigError(f"{where}: no user {name!r}{did_you_mean(name, known)}")
    return found


def _budget_key(budget: Budget) -> tuple[str, ...]:
    kind = next(kind for kind in ("team", "key", "user") if getattr(budget, f"{kind}_id"))
    return kind, str(getattr(budget, kind)), budget.period, budget.zone, *budget.models_covered


def _budget_label(key: tuple[str, ...]) -> str:
    """Return the budget's name in the list of changes: ``platform a month for claude-opus-*``."""
    _, name, period, _, *models = key
    return f"{name} a {period}" + (f" for {', '.join(models)}" if models else "")


def _route_key(route: Route) -> tuple[str, str | None]:
    return route.model, route.team.name if route.team else None


def _price_key(price: Price) -> str:
    names = ("upstream", "model", "since", *DIMENSIONS)
    return price_name({name: getattr(price, name) for name in names})


def _is_in_force(price: Price) -> bool:
    return price.since <= timezone.now().date()


def _day(at: datetime) -> str:
    return f"{at:%Y-%m-%d}"
