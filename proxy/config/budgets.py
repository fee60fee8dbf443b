"""Budgets of a bridge.toml: beside their team or key, or by themselves in ``[[budgets]]``."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from django.contrib.auth import get_user_model

from proxy.complaints import did_you_mean
from proxy.models import ApiKey, Budget, Team
from proxy.secrets import ConfigError

from . import schema
from .rows import Rows


class Owned(NamedTuple):
    """One budget: where it stands, whose it is (a field of ``Budget``, its row), what it says."""

    where: str
    kind: str
    owner: Any
    name: str
    entry: schema.Budget


def apply_budgets(file: schema.BridgeFile, rows: Rows) -> None:
    """After teams and keys: every budget of the file, and none that it no longer has."""
    wanted = set()
    for one in _owned(file, rows):
        entry, secret = one.entry, one.entry.webhook_secret
        identity = {one.kind: one.owner, "period": entry.period, "zone": entry.zone}
        fields = {
            "usd": entry.usd,
            "hard": entry.hard,
            "webhook": entry.webhook,
            "webhook_secret": secret.stored if secret else {},
            "emails": entry.emails,
        }
        label = f"{one.name} a {entry.period}"
        wanted.add(rows.put(Budget, identity, fields, one.where, label).pk)
    gone = Budget.objects.filter(managed=True).exclude(pk__in=wanted)
    for budget in gone.select_related("team", "key__team", "user"):
        name = budget.owner.partition(" ")[2]
        rows.delete(budget, f"{name} a {budget.period}")


def _owned(file: schema.BridgeFile, rows: Rows) -> Iterator[Owned]:
    for place, team in enumerate(file.teams):
        for at, entry in enumerate(team.budgets):
            where = f"teams[{place}].budgets[{at}]"
            yield Owned(where, "team", rows.find(Team, team.name, where), team.name, entry)
    for place, key in enumerate(file.keys):
        name = f"{key.team}/{key.name}"
        for at, entry in enumerate(key.budgets):
            where = f"keys[{place}].budgets[{at}]"
            yield Owned(where, "key", _key(name, where), name, entry)
    for place, one in enumerate(file.budgets):
        yield _by_itself(one, f"budgets[{place}]", rows)


def _by_itself(one: schema.OwnedBudget, where: str, rows: Rows) -> Owned:
    if one.team is not None:
        return Owned(where, "team", rows.find(Team, one.team, f"{where}.team"), one.team, one)
    if one.key is not None:
        return Owned(where, "key", _key(one.key, f"{where}.key"), one.key, one)
    name = one.user or ""
    return Owned(where, "user", _user(name, f"{where}.user"), name, one)


def _key(name: str, where: str) -> ApiKey:
    team, _, key = name.partition("/")
    found = ApiKey.objects.filter(team__name=team, name=key).select_related("team").first()
    if found is None:
        known = [str(each) for each in ApiKey.objects.select_related("team")]
        raise ConfigError(f"{where}: no key {name!r}{did_you_mean(name, known)}")
    return found


def _user(name: str, where: str) -> Any:
    users = get_user_model().objects
    found = users.filter(username=name).first()
    if found is None:
        known = users.values_list("username", flat=True)
        raise ConfigError(f"{where}: no user {name!r}{did_you_mean(name, known)}")
    return found
