"""Write the budgets of a bridge.toml (in teams, in keys, in ``[[budgets]]``) to the database."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from proxy.models import ApiKey, Budget, Team

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
    for where, resolve in _all_budgets(file, rows):
        with rows.entry("budget", where):
            written.add(_apply_budget(resolve(where), rows).pk)
    obsolete = Budget.objects.filter(managed=True).exclude(pk__in=written)
    for budget in obsolete.select_related("team", "key__team", "user"):
        name = budget.owner.partition(" ")[2]
        rows.delete(budget, _label(name, budget.period, budget.models_covered))


def _label(name: str, period: str, models: list[str]) -> str:
    """Return the budget's name in the list of changes: ``platform a month for claude-opus-*``."""
    return f"{name} a {period}" + (f" for {', '.join(models)}" if models else "")


def _apply_budget(one: BudgetEntry, rows: ConfigWriter) -> Budget:
    entry = one.entry
    identity = {
        one.kind: one.owner,
        "period": entry.period,
        "zone": entry.zone,
        "models_covered": entry.models,
    }
    fields = {
        "usd": entry.usd,
        "hard": entry.hard,
        "emails": entry.emails,
    }
    label = _label(one.name, entry.period, entry.models)
    return rows.put(Budget, identity, fields, one.where, label)


def _all_budgets(
    file: schema.BridgeFile, rows: ConfigWriter
) -> Iterator[tuple[str, Callable[[str], BudgetEntry]]]:
    """Yield the path of each budget, and a function that finds its owner for this path."""
    for place, team in enumerate(file.teams):
        for at, entry in enumerate(team.budgets):
            yield f"teams[{place}].budgets[{at}]", partial(_of_team, entry, team.name, rows)
    for place, key in enumerate(file.keys):
        for at, entry in enumerate(key.budgets):
            name = f"{key.team}/{key.name}"
            yield f"keys[{place}].budgets[{at}]", partial(_of_key, entry, name, rows)
    for place, one in enumerate(file.budgets):
        yield f"budgets[{place}]", partial(_of_owner, one, rows)


def _of_team(entry: schema.Budget, name: str, rows: ConfigWriter, where: str) -> BudgetEntry:
    return BudgetEntry(where, "team", rows.find(Team, name, where), name, entry)


def _of_key(entry: schema.Budget, name: str, rows: ConfigWriter, where: str) -> BudgetEntry:
    return BudgetEntry(where, "key", _key(name, where, rows), name, entry)


def _of_owner(one: schema.OwnedBudget, rows: ConfigWriter, where: str) -> BudgetEntry:
    if one.team is not None:
        return BudgetEntry(where, "team", rows.find(Team, one.team, f"{where}.team"), one.team, one)
    if one.key is not None:
        return BudgetEntry(where, "key", _key(one.key, f"{where}.key", rows), one.key, one)
    name = one.user or ""
    return BudgetEntry(where, "user", find_user(name, f"{where}.user"), name, one)


def _key(name: str, where: str, rows: ConfigWriter) -> ApiKey:
    team, _, key = name.partition("/")
    found = ApiKey.objects.filter(team__name=team, name=key).select_related("team").first()
    if found is None:
        known = [str(each) for each in ApiKey.objects.select_related("team")]
        raise rows.unknown("key", name, where, known)
    return found
