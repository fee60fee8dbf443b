"""Errors in limits, models, networks and options are the same for a row and for bridge.toml."""

import importlib
from types import SimpleNamespace
from typing import Any, Final

import pytest
from django.apps import apps
from django.core.exceptions import ValidationError
from django.core.management import CommandError
from django.db import IntegrityError, connection, transaction

from proxy.config.dump import dump_table
from proxy.config.load import read
from proxy.models import ApiKey, Budget, Price, Team, Upstream
from proxy.secrets import ConfigError
from tests.for_each import for_each

FILE_NAMES: Final = {"models_allowed": "models"}
"""The names of row fields in bridge.toml, if they differ."""
TEAM_FIELDS: Final = ("limits", "models_allowed")

# field of the row, its value, path within it, start of the error
ERRORS: Final = [
    ("limits", {"rmp": 60}, "", "unknown key 'rmp'; did you mean 'rpm'?"),
    ("limits", {"rps": "x"}, "", "unknown key 'rps'; did you mean 'rpm'?"),
    ("limits", {"rpm": "sixty"}, ".rpm", "Expected int, got str, found 'sixty'"),
    ("limits", {"rpm": True}, ".rpm", "Expected int, got bool, found True"),
    ("limits", {"rpm": 1.5}, ".rpm", "Expected int, got float, found 1.5"),
    ("limits", {"tpm": 0}, ".tpm", "Expected int >= 1, found 0"),
    ("limits", {"concurrency": -1}, ".concurrency", "Expected int >= 1, found -1"),
    ("limits", [60], "", "Expected object, got array"),
    ("limits", 60, "", "Expected object, got int, found 60"),
    ("models_allowed", "claude-*", "", "Expected array, got str, found 'claude-*'"),
    ("models_allowed", [1], "[0]", "Expected str, got int, found 1"),
    ("models_allowed", ["a", ""], "[1]", "Expected str of length >= 1, found ''"),
    ("ip_allow", "10.0.0.0/8", "", "Expected array, got str, found '10.0.0.0/8'"),
    ("ip_allow", ["10.0.0.1/8"], "[0]", "'10.0.0.1/8' has host bits set"),
    ("ip_allow", ["10.0.0.0/33"], "[0]", "'10.0.0.0/33' does not appear to be an IPv4 or IPv6 net"),
    ("ip_allow", [10], "[0]", "'' does not appear to be an IPv4 or IPv6 network, found 10"),
    ("options", {"stric": True}, "", "unknown key 'stric'; did you mean 'strict'?"),
    ("options", {"x": 1}, "", "unknown key 'x'; known: events, store, strict"),
    ("options", {"strict": "yes"}, ".strict", "Expected bool, got str, found 'yes'"),
    ("options", {"events": "metadata"}, ".events", "Expected array, got str, found 'metadata'"),
    ("options", {"events": ["all"]}, ".events[0]",
     "Invalid enum value 'all'; expected one of 'metadata', 'blocks'"),
    ("options", {"store": "full"}, ".store",
     "Invalid enum value 'full'; expected one of 'metadata'"),
    ("options", ["strict"], "", "Expected object, got array"),
]  # fmt: skip
IDS: Final = [f"{field} {value}" for field, value, *_ in ERRORS]


@for_each(("field", "value", "at", "message"), ERRORS, ids=IDS)
def test_a_row_reports_field_path_value_and_expected_type(
    field: str, value: Any, at: str, message: str
):
    expected = f"{at.lstrip('.')}: {message}" if at else message
    for row in (ApiKey(), Team()) if field in TEAM_FIELDS else (ApiKey(),):
        setattr(row, field, value)

        with pytest.raises(ValidationError) as caught:
            row.clean_fields()

        assert caught.value.message_dict[field][0].startswith(expected)


@for_each(("field", "value", "at", "message"), ERRORS, ids=IDS)
def test_bridge_toml_reports_the_same_error(field: str, value: Any, at: str, message: str):
    name = FILE_NAMES.get(field, field)
    tables = {"keys": {"team": "t", "name": "k", name: value}}
    if field in TEAM_FIELDS:
        tables["teams"] = {"name": "t", name: value}
    for kind, table in tables.items():
        with pytest.raises(ConfigError) as caught:
            read(dump_table(kind, table))

        assert str(caught.value).startswith(f"{kind}[0].{name}{at}: {message}")


def test_all_valid_fields_of_a_key_are_accepted_by_row_and_file():
    rules = {
        "limits": {"rpm": 1, "tpm": 2, "concurrency": 3},
        "models_allowed": ["claude-*"],
        "ip_allow": ["10.0.0.0/8", "2001:db8::/32", "192.0.2.7"],
        "options": {"strict": False, "events": ["metadata", "blocks"], "store": "metadata"},
    }
    table = {FILE_NAMES.get(field, field): value for field, value in rules.items()}

    ApiKey(name="k", scopes=["messages"], prefix="p", **rules).clean_fields({"team"})
    (key,) = read(dump_table("keys", {"team": "t", "name": "k", **table})).keys

    assert {field: key[field] for field in rules} == rules


def test_a_null_field_becomes_its_empty_value():
    key = ApiKey(
        name="k", scopes=["messages"], prefix="p",
        limits=None, models_allowed=None, ip_allow=None, options=None,
    )  # fmt: skip

    key.clean_fields({"team"})

    assert (key.limits, key.models_allowed, key.ip_allow, key.options) == ({}, [], [], {})


@pytest.mark.django_db
@for_each(
    ("model", "values", "column", "message"),
    [
        (Team, {"name": "a", "limits": {"rmp": 60}}, "limits", "unknown key 'rmp'"),
        (
            Upstream,
            {"name": "b", "timeouts": {"idle_s": "x"}},
            "timeouts",
            "idle_s: Expected float",
        ),
        (Upstream, {"name": "c", "secret": {"value": "sk-inline"}}, "secret", "a secret is"),
    ],
)
def test_the_upgrade_stops_at_a_wrong_value_and_names_the_row(model, values, column, message):
    migration = importlib.import_module("proxy.migrations.0009_typed_configuration")
    editor = SimpleNamespace(connection=connection)
    migration.check_values(apps, editor)
    row = model.objects.create(**values)

    with pytest.raises(CommandError) as stopped:
        migration.check_values(apps, editor)

    text, named = str(stopped.value).split("\n  ")
    assert text.startswith("rows with values that are not allowed: 1. ")
    assert named.startswith(f"{model.__name__} {row.name} (id {row.pk}): {column}: {message}")
    assert "sk-inline" not in named
    row.delete()


@pytest.mark.django_db
def test_the_upgrade_names_all_rows_with_a_wrong_value():
    migration = importlib.import_module("proxy.migrations.0009_typed_configuration")
    for name in ("a", "b"):
        Team.objects.create(name=name, limits=[], member_keys=7)

    with pytest.raises(CommandError) as stopped:
        migration.check_values(apps, SimpleNamespace(connection=connection))

    _, *named = str(stopped.value).split("\n  ")
    assert [(line.split()[1], line.split(": ")[1]) for line in named] == [
        ("a", "limits"), ("b", "limits"), ("a", "member_keys"), ("b", "member_keys"),
    ]  # fmt: skip


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL has no text in numbers")
def test_the_upgrade_names_a_row_whose_number_is_text():
    migration = importlib.import_module("proxy.migrations.0009_typed_configuration")
    team = Team.objects.create(name="a")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE proxy_team SET retention_days = 'ninety'")

    with pytest.raises(CommandError, match=rf"Team a \(id {team.pk}\): retention_days: the stored"):
        migration.check_values(apps, SimpleNamespace(connection=connection))


@pytest.mark.django_db
def test_the_upgrade_accepts_what_earlier_versions_accepted():
    migration = importlib.import_module("proxy.migrations.0009_typed_configuration")
    long = {"m" * 300: {"images": False}}
    Upstream.objects.create(name="a", base_url="https://a.example", model_capabilities=long)

    migration.check_values(apps, SimpleNamespace(connection=connection))


@pytest.mark.django_db
@for_each(
    ("model", "values"),
    [
        (Team, {"name": "a", "retention_days": 0}),
        (Price, {"model": "m", "since": "2026-01-01", "input": -1, "output": 1}),
        (Budget, {"usd": -1}),
    ],
)
def test_the_database_refuses_numbers_out_of_range(model, values):
    if model is Budget:
        values = {**values, "team": Team.objects.create(name="owner")}

    with pytest.raises(IntegrityError), transaction.atomic():
        model.objects.create(**values)
