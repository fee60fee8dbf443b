"""The ids of teams and persons in the ledger, and the names that they are shown with."""

import importlib
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.db import connection

from proxy.models import AuditEntry, LedgerHead, Person, Team
from proxy.models.ledger_names import LedgerNames, person_ids, team_ids
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db


def test_the_upgrade_makes_the_names_ids_and_records_the_end_of_the_chain() -> None:
    row = factories.record(opening={"team": "red", "user": "ada"})
    Team.objects.create(name="red")
    User.objects.create(username="ada")
    Person.objects.all().delete()
    migration = importlib.import_module("proxy.migrations.0008_identity_by_id")
    editor = SimpleNamespace(connection=connection)

    migration.give_names_as_ids(apps, editor)
    migration.seal_head(apps, editor)

    person = Person.objects.get(user__username="ada")
    assert (Team.objects.get(name="red").ledger_id, person.pk) == (row.team, row.user)
    head = LedgerHead.objects.get()
    [entry] = AuditEntry.objects.filter(action="run")
    assert f"at link {head.sequence} of the hash chain" in entry.detail
    assert entry.detail.endswith(bytes(head.digest).hex())


def person_name(ident: str) -> str:
    return LedgerNames().persons.load([ident])[ident]


def test_an_account_keeps_its_id_and_a_deleted_one_its_name() -> None:
    user = User.objects.create(username="ada")
    ident = user.person.pk
    user.username = "eva"
    user.save()
    assert (person_name(ident), person_ids("ada")) == ("eva", ["ada"])

    user.delete()
    heir = User.objects.create(username="eva")

    assert person_name(ident) == "eva"
    assert person_ids("eva") == [heir.person.pk, ident]


def test_an_id_without_a_team_is_shown_itself_and_found_beside_a_new_team_of_its_name() -> None:
    factories.record(opening={"team": "red"})
    assert (LedgerNames().teams.load(["red"])["red"], team_ids("red")) == ("red", ["red"])

    team = Team.objects.create(name="red")

    assert team_ids("red") == [team.ledger_id, "red"]


def test_ids_say_nothing_and_are_never_given_again() -> None:
    first = Team.objects.create(name="red")
    kept = first.ledger_id
    first.delete()

    assert Team.objects.create(name="red").ledger_id != kept
    assert "red" not in kept
