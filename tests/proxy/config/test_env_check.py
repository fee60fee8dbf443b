"""Reading typed settings from variables and files; errors name the variable."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from bridge_project.env import (
    env_bool,
    env_hour,
    env_int,
    env_list,
    env_months,
    env_seconds,
    env_str,
    env_url,
    stored_secret,
)


@pytest.mark.parametrize(
    ("reader", "name", "value", "expected"),
    [
        (env_int, "BRIDGE_MAX_STREAMS", "7", 7),
        (env_seconds, "BRIDGE_DRAIN_S", "0.5", 0.5),
        (env_bool, "BRIDGE_DEBUG", "Yes", True),
        (env_list, "BRIDGE_ALLOWED_HOSTS", " a , b,, ", ["a", "b"]),
        (env_str, "BRIDGE_DATA_DIR", "/srv/bridge", "/srv/bridge"),
        (env_hour, "BRIDGE_PURGE_HOUR", "23", 23),
        (env_hour, "BRIDGE_PURGE_HOUR", "never", None),
        (env_months, "BRIDGE_ARCHIVE_AFTER_MONTHS", "3", 3),
    ],
)
def test_a_value_is_read_as_its_type(monkeypatch, reader, name, value, expected):
    monkeypatch.setenv(name, value)

    assert reader(name) == expected


def test_a_value_may_come_from_a_file(monkeypatch, tmp_path):
    (tmp_path / "value").write_text("7\n", encoding="utf-8")
    monkeypatch.setenv("BRIDGE_MAX_STREAMS_FILE", str(tmp_path / "value"))

    assert env_int("BRIDGE_MAX_STREAMS") == 7


@pytest.mark.parametrize(
    ("reader", "name", "value"),
    [
        (env_int, "BRIDGE_MAX_STREAMS", "0"),
        (env_int, "BRIDGE_MAX_STREAMS", "-1"),
        (env_int, "BRIDGE_MAX_STREAMS", "many"),
        (env_int, "BRIDGE_MAX_STREAMS", ""),
        (env_seconds, "BRIDGE_DRAIN_S", "0"),
        (env_seconds, "BRIDGE_DRAIN_S", "nan"),
        (env_seconds, "BRIDGE_DRAIN_S", "inf"),
        (env_seconds, "BRIDGE_DRAIN_S", "1m"),
        (env_bool, "BRIDGE_DEBUG", "maybe"),
        (env_hour, "BRIDGE_PURGE_HOUR", "24"),
        (env_months, "BRIDGE_ARCHIVE_AFTER_MONTHS", "0"),
    ],
)
def test_a_wrong_value_names_the_variable_and_what_was_expected(monkeypatch, reader, name, value):
    monkeypatch.setenv(name, value)

    with pytest.raises(ImproperlyConfigured, match=f"{name} is '{value}'.*expected"):
        reader(name)


@pytest.mark.parametrize(
    "value",
    ["ledger", "mysql://ada:pa55word@db/x", "postgres://ada:pa55word@db:many/x", "postgres://[db"],
)
def test_an_invalid_url_is_rejected_with_the_schemes_and_without_its_password(monkeypatch, value):
    monkeypatch.setenv("DATABASE_URL", value)

    with pytest.raises(
        ImproperlyConfigured, match=r"DATABASE_URL .*postgres:// or sqlite://"
    ) as caught:
        env_url("DATABASE_URL", "postgres", "sqlite")

    assert "pa55word" not in str(caught.value)


def test_a_url_with_a_known_scheme_is_accepted_unchanged(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgres://ada:pa55word@db:5432/x")

    assert env_url("DATABASE_URL", "postgres") == "postgres://ada:pa55word@db:5432/x"


def test_an_unset_url_is_empty(monkeypatch):
    monkeypatch.delenv("REDIS_URL", raising=False)

    assert env_url("REDIS_URL", "redis") == ""


def test_a_file_at_the_path_of_the_data_directory_is_reported(tmp_path):
    (tmp_path / "data").write_text("", encoding="utf-8")

    with pytest.raises(ImproperlyConfigured, match=r"data directory .*data is no directory"):
        stored_secret(tmp_path / "data" / "secret_key")


def test_a_variable_and_its_file_variable_together_are_rejected(monkeypatch, tmp_path):
    monkeypatch.setenv("BRIDGE_SECRET_KEY", "a")
    monkeypatch.setenv("BRIDGE_SECRET_KEY_FILE", str(tmp_path / "key"))

    with pytest.raises(ImproperlyConfigured, match="both BRIDGE_SECRET_KEY and"):
        env_str("BRIDGE_SECRET_KEY")


def test_reading_a_variable_outside_the_table_raises_a_key_error():
    with pytest.raises(KeyError):
        env_str("BRIDGE_NO_SUCH_THING")
