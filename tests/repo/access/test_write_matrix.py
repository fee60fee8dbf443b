"""Compare every write, by every role, on own and foreign rows, with a table.

``write_matrix.txt`` is the table. A refused write must not change the database: the word ``written``
means that the database changed. After an intended change,
generate the table and review the difference:
``BRIDGE_WRITE_MATRIX=1 pytest -n0 -m "slow or not slow" tests/repo/access/test_write_matrix.py``.
"""

import functools
import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.urls import URLPattern, URLResolver, get_resolver

from proxy.gateway.snapshot import revoked_keys_file
from proxy.models import (
    ApiKey,
    AuditEntry,
    Budget,
    BudgetNotice,
    Drift,
    Export,
    FormerName,
    Identity,
    Pause,
    Person,
    Price,
    Purge,
    Route,
    RouteTarget,
    SavedReport,
    SavedView,
    Team,
    Upstream,
    UpstreamPolicy,
    Webhook,
    WebhookDelivery,
    WebhookEvent,
)
from tests import lanes
from tests.fakes.servers.gateway import Gateway
from tests.fakes.servers.web_session import FORM, WebSession

from .write_company import PEOPLE, QUICK_PASSWORDS, fill
from .writes import WRITES, Write

TABLE = Path(__file__).with_name("write_matrix.txt")
WRITING = bool(os.environ.get("BRIDGE_WRITE_MATRIX"))
KEYS = {"member_key": "ben_key", "reports_key": "dashboard_key", "admin_key": "finance"}
ROLES = (*PEOPLE, *KEYS)
SWITCHES = ("admin/login/", "admin/logout/")
"""URLs that write only the caller's own session."""
WRITABLE = (
    *apps.get_app_config("auth").get_models(include_auto_created=True),
    *(Team, ApiKey, Budget, Route, RouteTarget, Price, Upstream, UpstreamPolicy, Drift, Pause),
    *(SavedView, Export, Purge, Identity, BudgetNotice, AuditEntry),
    *(SavedReport, Webhook, WebhookEvent, WebhookDelivery, Person, FormerName),
)
"""Models that a user may write. Only the gateway writes the others: the ledger and its rollups."""
COMPARED = tuple(model._meta.db_table for model in WRITABLE)
RESTORED = (*COMPARED, "django_session", "proxy_exchange")
WRITTEN_BY_GATEWAY = {"proxy_apikey": {"last_used"}}
"""Columns that the gateway updates some time after a request."""
SETTLED = (
    "SELECT count(*) FROM proxy_export WHERE state IN ('waiting', 'running')",
    "SELECT count(*) FROM proxy_purge WHERE state = 'running'",
)
"""Queries that count the background work that continues after the response."""


class Database:
    """Reads and restores the gateway's database over a connection of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = sqlite3.connect(path, timeout=120, isolation_level=None)
        self._version: Any = None
        self._rows: dict[str, list[Any]] = {}

    def close(self) -> None:
        self._connection.close()

    def rows(self) -> dict[str, list[Any]]:
        """Return all rows of the restored tables by table.

        They are read again only if another connection has changed the database, which SQLite shows
        as another ``data_version``.
        """
        version = self._connection.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self._rows = {}
            for name in RESTORED:
                query = f'SELECT {self.columns(self._connection, name)} FROM "{name}" ORDER BY 1'  # noqa: S608 - constant names
                self._rows[name] = self._connection.execute(query).fetchall()
            self._version = version
        return self._rows

    def columns(self, connection: sqlite3.Connection, table: str) -> str:
        found = [name for _, name, *_ in connection.execute(f'PRAGMA table_info("{table}")')]
        return ", ".join(
            f'"{name}"' for name in found if name not in WRITTEN_BY_GATEWAY.get(table, ())
        )

    def restore(self, rows: dict[str, list[Any]]) -> None:
        """Write these rows back where they differ, after the background work has ended."""
        connection = self._connection
        deadline = time.monotonic() + 60
        while any(connection.execute(query).fetchone()[0] for query in SETTLED):
            assert time.monotonic() < deadline, "an export or a purge does not end"
            time.sleep(0.05)
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("BEGIN IMMEDIATE")
        now = self.rows()
        for name, found in rows.items():
            if now[name] == found:
                continue
            connection.execute(f'DELETE FROM "{name}"')  # noqa: S608 - as above
            if found:
                marks = ",".join("?" * len(found[0]))
                columns = self.columns(connection, name)
                insert = f'INSERT INTO "{name}" ({columns}) VALUES ({marks})'  # noqa: S608
                connection.executemany(insert, found)
        connection.execute("COMMIT")
        self._rows = rows  # SQLite does not show a change by this connection as another version


class Company:
    """A running gateway with its callers by role and the ids of its rows."""

    def __init__(self, gateway: Gateway, data: dict[str, Any]) -> None:
        self.gateway, self.ids = gateway, {name: str(pk) for name, pk in data["ids"].items()}
        self.callers = {
            role: WebSession(gateway).sign_in(name, data["password"])
            for role, (name, *_) in PEOPLE.items()
        }
        for role, key in KEYS.items():
            self.callers[role] = WebSession(gateway)
            self.callers[role].cookies["csrftoken"] = "a" * 32  # only the session is missing
            self.callers[role].headers["x-api-key"] = data["secrets"][key]
        self.database = Database(gateway.folder / "data" / "ledger.sqlite3")
        self.at_first = self.database.rows()

    def insert_ids(self, text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: self.ids[found[1]], text)

    def word(self, role: str, write: Write, compared: Sequence[str] = COMPARED) -> str:
        """Send a write; return ``written``, ``login``, ``away`` (redirect), ``shown`` (200) or a status."""
        path = "/" + self.insert_ids(write.path)
        if write.path.startswith("api/"):
            body = b"" if write.body is None else self.insert_ids(json.dumps(write.body)).encode()
            kind = "application/json"
        else:
            body = {
                name: [self.insert_ids(one) for one in value] if isinstance(value, list) else self.insert_ids(str(value))
                for name, value in write.body.items()
            }  # fmt: skip
            kind = FORM
        before = self.at_first
        if self.database.rows() != before:  # an interrupted case must not fail the next one
            self.database.restore(before)
        try:
            response = self.callers[role].send(write.method, path, body, kind)
        except OSError as lost:
            raise AssertionError(f"no response ({lost}):\n{self.gateway.log[-3_000:]}") from lost
        after = self.database.rows()
        if before != after:
            self.database.restore(before)
        written = [name for name in compared if before[name] != after[name]]
        if written:
            return (
                "written" if response.status < 400 else f"{response.status}-but-written:{written}"
            )
        if response.status == 302:
            return "login" if "/login/" in response.headers["location"] else "away"
        return "shown" if response.status == 200 else str(response.status)


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Company]:
    with Gateway(tmp_path_factory.mktemp("writes"), key="", environment=QUICK_PASSWORDS) as gateway:
        # Each case restores the rows; this file would revoke a restored key again (T49).
        (gateway.folder / "data" / revoked_keys_file.FILE_NAME).symlink_to(os.devnull)
        running = Company(gateway, fill(gateway))
        yield running
        running.database.close()


@functools.cache
def table() -> dict[tuple[str, str], tuple[str, ...]]:
    lines = [line.split() for line in TABLE.read_text().splitlines() if line and line[0] != "#"]
    return {(pattern, whose): tuple(words) for pattern, whose, *words in lines}


def patterns(found: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every URL pattern of Django with its view."""
    for one in found:
        route = above + str(one.pattern)
        if isinstance(one, URLResolver):
            yield from patterns(one.url_patterns, route)
        elif isinstance(one, URLPattern):
            yield route, one.callback


VIEWS = dict(patterns(get_resolver("bridge_project.urls").url_patterns))
ADMIN = [route for route in VIEWS if route.startswith("admin/")]
CASES = [(pattern, whose) for pattern, targets in WRITES.items() for whose in targets]
OTHER = [route for route in ADMIN if route not in WRITES and route not in SWITCHES]
"""Pages without writes; the superuser posts to each of them."""
OTHER_METHODS = lanes.repeat(fast=("POST",), slow=("POST", "PUT", "PATCH", "DELETE"))
"""Django's views handle PUT and PATCH as GET, or reject them."""


def test_every_write_of_the_api_and_every_form_of_the_admin_has_rows():
    methods = {"post", "put", "patch", "delete"}
    api = {
        (route.rstrip("/"), method.upper())
        for route, view in VIEWS.items()
        if hasattr(view, "cls")
        for method in methods & set(view.cls.http_method_names)
        if method in getattr(view, "actions", ()) or hasattr(view.cls, method)
    }
    covered = {
        (pattern, write.method) for pattern, targets in WRITES.items() for write in targets.values()
    }
    forms = re.compile(r"/(add|change|delete|rotate|revoke|password|stop|test|purge|invite|send)/$")

    assert api - covered == set()
    assert {route for route in OTHER if forms.search(route)} == set()
    assert set(table()) == set(CASES)
    assert all(len(words) == len(ROLES) for words in table().values())


@pytest.mark.repeated
@pytest.mark.parametrize("route", OTHER)
def test_a_write_to_any_other_page_changes_nothing(company: Company, route):
    fillings = {"<path:object_id>": company.ids["platform"], "<int:key_id>": company.ids["ci"],
                "<str:key_id>": f"apikey_{company.ids['ci']}",
                "<int:team_id>": company.ids["platform"], "<int:user_id>": company.ids["member"],
                "<str:exchange_id>": company.ids["ci_request"], "<str:side>": "request",
                "<path:content_type_id>": "1", "(?P<url>.*)$": "nowhere/",
                "^(?P<app_label>auth|proxy)/$": "proxy/", "^(?P<app_label>proxy|auth)/$": "proxy/"}  # fmt: skip
    path = route
    for pattern, value in fillings.items():
        path = path.replace(pattern, value)

    without_log = [name for name in COMPARED if name != AuditEntry._meta.db_table]  # records reads
    body = {"action": "delete_selected", "post": "yes"}
    words = [
        company.word("root", Write(method, path, body), without_log) for method in OTHER_METHODS
    ]

    assert not [word for word in words if "written" in word or word.startswith("5")]


REFUSED = {"401", "403", "404", "405", "login"}


def roles(pattern: str, whose: str) -> Sequence[str]:
    """Return the roles that send the write: in the fast lane not all that every target refuses.

    A role that the URL refuses whatever the target is sends only the first write and the one to the
    foreign team. No page accepts a key, so one key sends the writes of pages.
    """
    if lanes.is_slow():
        return ROLES
    targets = list(WRITES[pattern])
    words = [dict(zip(ROLES, table()[pattern, one], strict=True)) for one in targets]
    senders = [
        role
        for role in ROLES
        if whose in {targets[0], "foreign"} or any(row[role] not in REFUSED for row in words)
    ]
    keys = ("member_key", "reports_key") if pattern.startswith("admin/") else ()
    return [role for role in senders if role not in keys]


@pytest.mark.repeated
@pytest.mark.parametrize(("pattern", "whose"), CASES)
def test_each_write_of_a_role_matches_the_table(company: Company, pattern, whose):
    found = {role: company.word(role, WRITES[pattern][whose]) for role in roles(pattern, whose)}

    if WRITING:
        with TABLE.open("a") as lines:
            lines.write(f"{pattern} {whose} {' '.join(found.values())}\n")
        return
    expected = dict(zip(ROLES, table()[pattern, whose], strict=True))
    assert found == {role: expected[role] for role in found}


def test_a_lead_sees_only_own_teams_keys_and_users(company: Company):
    lead, foreign = company.callers["lead"], {"research", "attic", "cleo", "research/lab"}

    pages = {
        field: lead.send(
            "GET",
            f"/admin/autocomplete/?app_label=proxy&model_name=budget&field_name={field}&term=",
        ).body
        for field in ("team", "key", "user")
    }
    offered = {
        field: {one["text"] for one in json.loads(body)["results"]} for field, body in pages.items()
    }
    forms = [
        lead.send("GET", path).body.decode()
        for path in ("/admin/proxy/route/add/", "/admin/proxy/apikey/add/", "/admin/auth/user/")
    ]

    assert offered["team"] == {"platform", "empty"}
    assert offered["user"] == {"ada", "ben", "carl"}
    assert {"platform/ci", "platform/finance"} <= offered["key"]
    assert not foreign & set().union(*offered.values())
    assert all(f">{name}</" not in form for form in forms for name in foreign)
    assert all("platform" in form for form in forms[:2])
