"""A rotated DATABASE_URL_FILE is in force for every connection that is made from then on."""

import threading

import pytest
from django.db import connections

from proxy.record import database_credentials
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
def used(monkeypatch):
    merged = {**connections.settings["default"], **OLD}
    monkeypatch.setitem(connections.settings, "default", merged)
    return merged


def parameters():
    """Of a connection that another thread made before, when it connects."""
    made = []
    thread = threading.Thread(target=lambda: made.append(connections.create_connection("default")))
    thread.start()
    thread.join()
    database_credentials.renew()
    told = made[0].get_connection_params()
    return {name: told.get(name) for name in ("user", "password", "host", "dbname")}


def test_user_and_password_are_renewed_and_nothing_else(file, used):
    told = {"user": "bridge-2", "password": "two", "host": "db", "dbname": "ledger"}
    assert parameters() == told


@pytest.mark.parametrize("text", ["", "sqlite:///ledger.sqlite3", "gopher://a:b@c/d"])
def test_a_file_that_holds_no_such_url_changes_nothing(file, used, text):
    SECRET_FILES.read(str(file))
    file.write_text(text)
    if not text:  # the last good text would be taken
        SECRET_FILES.read(str(file))
        used |= {"USER": "bridge-2", "PASSWORD": "two"}
    before = dict(used)

    database_credentials.renew()

    assert used == before


def test_without_a_file_nothing_is_read(monkeypatch, used):
    monkeypatch.delenv("DATABASE_URL_FILE", raising=False)
    database_credentials.renew()

    assert used["PASSWORD"] == "one"


def test_a_file_that_never_was_there_changes_nothing(tmp_path, monkeypatch, used):
    monkeypatch.setenv("DATABASE_URL_FILE", str(tmp_path / "none"))
    database_credentials.renew()

    assert used["PASSWORD"] == "one"
