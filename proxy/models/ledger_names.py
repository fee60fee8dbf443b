"""The ids of teams and persons in the ledger, and the names that are shown for them.

A row of the ledger refers to its team, person and key by ids that never change and are never given
again, so a rename or a name that is given anew changes no permission, budget or report. Names are
looked up when they are shown. A team or an account that existed before this version has the name of
then as its id; an id without a team or an account, such as a pseudonym, is shown itself.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple, Self, TypeVar

from django.apps import apps
from django.conf import settings
from django.db import models
from django.db.models.signals import post_save, pre_delete

from proxy.ids import new_ulid

MAX_IDS: Final = 500
"""Ids of one query."""


def new_team_id() -> str:
    return f"team_{new_ulid()}"


def new_person_id() -> str:
    return f"user_{new_ulid()}"


class Person(models.Model):
    """The id of a user in the ledger."""

    id = models.CharField(max_length=150, primary_key=True, default=new_person_id, editable=False)
    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="person"
    )

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.user.get_username()


class NameKind(models.TextChoices):
    TEAM = "team"
    KEY = "key"
    USER = "user"


class FormerName(models.Model):
    """The last name of a deleted team, gateway key or user, for the rows of its requests."""

    kind = models.CharField(max_length=4, choices=NameKind.choices)
    ident = models.CharField(max_length=150)  # as the ledger has it
    name = models.CharField(max_length=150)

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["kind", "ident"], name="formername_once")]
        indexes = [models.Index(fields=["kind", "name"], name="formername_name")]

    def __str__(self) -> str:
        return self.name


def person_id(user: Any) -> str:
    """Return the id of a user in the ledger; "" for None and for a visitor without an account."""
    if user is None or user.pk is None:
        return ""
    person: Person | None = getattr(user, "person", None)
    if person is None:
        person = Person.objects.get_or_create(user_id=user.pk)[0]
        person.user = user  # ``user.person`` has it, too
    return person.pk


class CallerNames(NamedTuple):
    """The names of a row's team, key and person as they are shown."""

    team: str
    key: str
    user: str


class EntryNames(NamedTuple):
    """The names of an audit entry's team, of who acted and of whose data was read."""

    team: str
    user: str
    subject: str


def _rows(name: str) -> Any:
    """Return the rows of a model whose module imports this one."""
    return apps.get_model("proxy", name)._default_manager  # noqa: SLF001 - documented by Django


class Names(dict[Any, str]):
    """Names by id, each looked up once; an id without a name is shown itself."""

    def __init__(self, kind: NameKind) -> None:
        self._kind = kind

    def load(self, ids: Iterable[Any]) -> Self:
        """Look up the names of those ids that are new."""
        model, column, name = NAMED[self._kind]
        wanted = sorted({one for one in ids if one not in {None, ""} and one not in self})
        for at in range(0, len(wanted), MAX_IDS):
            some = wanted[at : at + MAX_IDS]
            found = _rows(model).order_by().filter(**{f"{column}__in": some})
            self.update(found.values_list(column, name))
            if missing := {str(one): one for one in some if one not in self}:
                former = FormerName.objects.filter(kind=self._kind, ident__in=missing)
                names = dict(former.values_list("ident", "name"))
                for text, one in missing.items():
                    self[one] = names.get(text, "" if self._kind == NameKind.KEY else text)
        return self

    def __missing__(self, ident: Any) -> str:
        return ""


NAMED: Final[Mapping[NameKind, tuple[str, str, str]]] = {
    NameKind.TEAM: ("Team", "ledger_id", "name"),
    NameKind.KEY: ("ApiKey", "pk", "name"),
    NameKind.USER: ("Person", "pk", "user__username"),
}
"""Kind -> model, column with the id in the ledger, and column with the name."""


class LedgerNames:
    """The names of teams, keys and persons that were looked up together."""

    def __init__(self) -> None:
        self.teams = Names(NameKind.TEAM)
        self.keys = Names(NameKind.KEY)
        self.persons = Names(NameKind.USER)

    def of_callers(self, callers: Iterable[tuple[str, int | None, str]]) -> list[CallerNames]:
        """Return the names for the values of the columns ``team``, ``key_id`` and ``user``."""
        found = list(callers)
        teams = self.teams.load(team for team, _, _ in found)
        keys = self.keys.load(key for _, key, _ in found)
        persons = self.persons.load(user for _, _, user in found)
        return [CallerNames(teams[team], keys[key], persons[user]) for team, key, user in found]


def team_ids(name: str) -> list[str]:
    """Return the ids that are shown as a team of this name."""
    return _ids(NameKind.TEAM, "team", name)


def person_ids(name: str) -> list[str]:
    """Return the ids that are shown as a person of this name: the account, then deleted ones."""
    return _ids(NameKind.USER, "user", name)


def key_ids(name: str, team: str | None = None) -> list[int]:
    """Return the primary keys of the gateway keys of this name, in the team of this name if any."""
    keys = _rows("ApiKey").filter(name=name)
    if team is not None:
        return list(keys.filter(team__name=team).values_list("pk", flat=True))
    return [*keys.values_list("pk", flat=True), *map(int, _former_ids(NameKind.KEY, name))]


def _ids(kind: NameKind, column: str, name: str) -> list[str]:
    model, ident, shown = NAMED[kind]
    rows = _rows(model)
    found = [*rows.filter(**{shown: name}).values_list(ident, flat=True), *_former_ids(kind, name)]
    # The name itself may be an id without a team or an account, whose requests are in the sums.
    is_known = (
        rows.filter(**{ident: name}).exists()
        or FormerName.objects.filter(kind=kind, ident=name).exists()
        or (found and not _rows("UsageByCallerDay").filter(**{column: name}).exists())
    )
    return found if is_known else [*found, name]


def _former_ids(kind: NameKind, name: str) -> list[str]:
    former = FormerName.objects.filter(kind=kind, name=name)
    return list(former.values_list("ident", flat=True))


Row = TypeVar("Row", bound=models.Model)


def with_names(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield requests, or audit entries, after looking up the names of many together."""
    remaining, names = iter(rows), LedgerNames()
    while some := list(islice(remaining, MAX_IDS)):
        type(some[0]).load_names(some, names)  # type: ignore[attr-defined]  # both models have it
        yield from some


def _add_person(instance: Any, created: bool = False, raw: bool = False, **_: Any) -> None:
    if created and not raw:
        person_id(instance)


def keep_name(kind: NameKind, ident: Any, name: str) -> None:
    """Before a team, key or user is deleted, keep its name for the rows of its requests."""
    defaults = {"name": name}
    FormerName.objects.update_or_create(kind=kind, ident=str(ident), defaults=defaults)


def _keep_user_name(instance: Any, **_: Any) -> None:
    keep_name(NameKind.USER, person_id(instance), instance.get_username())


post_save.connect(_add_person, sender=settings.AUTH_USER_MODEL, dispatch_uid="person-add")
pre_delete.connect(_keep_user_name, sender=settings.AUTH_USER_MODEL, dispatch_uid="person-name")
