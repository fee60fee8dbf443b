"""A changed DATABASE_URL_FILE applies to all new database connections."""

import threading

import pytest
from django.db import connections

from proxy.ledger.database import access
from proxy.secrets import SECRET_FILES

ENGINE = "django.db.backends.postgresql"
OLD = {"ENGINE": ENGINE, "USER": "bridge-1", "PASSWORD": "one", "HOST": "db", "NAME": "ledger"}


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "url"
    path.write_text("postgres://bridge-2:two@elsewhere/other")
    monkeypatch.setenv("DATABASE_URL_FILE", str(path))
    return path


@pytest.fixture
def database_settings(monkeypatch):
    merged = {**connections.settings["default"], **OLD}
    monkeypatch.setitem(connections.settings, "default", merged)
    return merged


def parameters():
    """Return the parameters of a connection that another thread created before the change."""
    made = []
    thread = threading.Thread(target=lambda: made.append(connections.create_connection("default")))
    thread.start()
    thread.join()
    access.renew()
    params = made[0].get_connection_params()
    return {name: params.get(name) for name in ("user", "password", "host", "dbname")}


def test_only_user_and_password_are_updated(file, database_settings):
    expected = {"user": "bridge-2", "password": "two", "host": "db", "dbname": "ledger"}
    assert parameters() == expected


@pytest.mark.parametrize("text", ["", "sqlite:///ledger.sqlite3", "gopher://a:b@c/d"])
def test_a_file_without_a_postgresql_url_changes_nothing(file, database_settings, text):
    SECRET_FILES.read(str(file))
    file.write_text(text)
    if not text:  # an empty file: the last good URL is used
        SECRET_FILES.read(str(file))
        database_settings |= {"USER": "bridge-2", "PASSWORD": "two"}
    before = dict(database_settings)

    access.renew()

    assert database_settings == before


def test_without_a_file_nothing_is_read(monkeypatch, database_settings):
    monkeypatch.delenv("DATABASE_URL_FILE", raising=False)
    access.renew()

    assert database_settings["PASSWORD"] == "one"


def test_a_missing_file_changes_nothing(tmp_path, monkeypatch, database_settings):
    monkeypatch.setenv("DATABASE_URL_FILE", str(tmp_path / "none"))
    access.renew()

    assert database_settings["PASSWORD"] == "one"
