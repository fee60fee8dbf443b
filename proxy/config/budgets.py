"""Write the budgets of a bridge.toml (in teams, in keys, in ``[[budgets]]``) to the database."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from proxy.decode_errors import did_you_mean
from proxy.models import ApiKey, Budget, Team
from proxy.secrets import ConfigError

from . import schema
from .row_writer import ConfigWriter, find_user


class BudgetEntry(NamedTuple):
    """One budget of the file, with its owner."""

    where: str  # path within the file, such as "teams[0].budgets[1]"
    kind: str  # the field of the model Budget that refers to the owner: "team", "key" or "user"
    owner: Any  # the database row of the owner
    name: str  # the owner's name in the list of changes
    entry: schema.Budget


def apply_budgets(file: schema.BridgeFile, rows: ConfigWriter) -> None:
    """Write every budget of the file; delete the managed budgets that it no longer has.

    The teams and keys of the file must be in the database already.
    """
    written = set()
    for one in _all_budgets(file, rows):
        entry, secret = one.entry, one.entry.webhook_secret
        identity = {
            one.kind: one.owner,
            "period": entry.period,
            "zone": entry.zone,
            "models_covered": entry.models,
        }
        fields = {
            "usd": entry.usd,
            "hard": entry.hard,
            "webhook": entry.webhook,
            "webhook_secret": secret.stored if secret else {},
            "emails": entry.emails,
        }
        label = _label(one.name, entry.period, entry.models)
        written.add(rows.put(Budget, identity, fields, one.where, label).pk)
    obsolete = Budget.objects.filter(managed=True).exclude(pk__in=written)
    for budget in obsolete.select_related("team", "key__team", "user"):
        name = budget.owner.partition(" ")[2]
        rows.delete(budget, _label(name, budget.period, budget.models_covered))


def _label(name: str, period: str, models: list[str]) -> str:
    """Return the budget's name in the list of changes: ``platform a month for claude-opus-*``."""
    return f"{name} a {period}" + (f" for {', '.join(models)}" if models else "")


def _all_budgets(file: schema.BridgeFile, rows: ConfigWriter) -> Iterator[BudgetEntry]:
    for place, team in enumerate(file.teams):
        for at, entry in enumerate(team.budgets):
            where = f"teams[{place}].budgets[{at}]"
            yield BudgetEntry(where, "team", rows.find(Team, team.name, where), team.name, entry)
    for place, key in enumerate(file.keys):
        name = f"{key.team}/{key.name}"
        for at, entry in enumerate(key.budgets):
            where = f"keys[{place}].budgets[{at}]"
            yield BudgetEntry(where, "key", _key(name, where), name, entry)
    for place, one in enumerate(file.budgets):
        yield _top_level(one, f"budgets[{place}]", rows)


def _top_level(one: schema.OwnedBudget, where: str, rows: ConfigWriter) -> BudgetEntry:
    if one.team is not None:
        return BudgetEntry(where, "team", rows.find(Team, one.team, f"{where}.team"), one.team, one)
    if one.key is not None:
        return BudgetEntry(where, "key", _key(one.key, f"{where}.key"), one.key, one)
    name = one.user or ""
    return BudgetEntry(where, "user", find_user(name, f"{where}.user"), name, one)


def _key(name: str, where: str) -> ApiKey:
    team, _, key = name.partition("/")
    found = ApiKey.objects.filter(team__name=team, name=key).select_related("team").first()
    if found is None:
        known = [str(each) for each in ApiKey.objects.select_related("team")]
        raise ConfigError(f"{where}: no key {name!r}{did_you_mean(name, known)}")
    return found
