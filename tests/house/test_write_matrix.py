"""Every write, by every role, on own and foreign rows: what the table says, through the server.

``write_matrix.txt`` is the table. A write that is refused leaves the database as it was, which the
word ``written`` states: it stands only where the database changed. After a change that is meant,
generate the table and review the difference:
``BRIDGE_WRITE_MATRIX=1 pytest -n0 tests/house/test_write_matrix.py``.
"""

import contextlib
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
from django.contrib.admin.models import LogEntry
from django.urls import URLPattern, URLResolver, get_resolver

from proxy.gateway import revocations
from proxy.models import (
    ApiKey,
    Budget,
    BudgetNotice,
    Drift,
    Export,
    Identity,
    Price,
    Purge,
    Route,
    RouteTarget,
    SavedView,
    Team,
    Upstream,
    UpstreamPolicy,
)
from tests.fakes.gateway import Gateway
from tests.fakes.web_session import FORM, WebSession

from .write_company import PEOPLE, fill
from .writes import WRITES, Write

TABLE = Path(__file__).with_name("write_matrix.txt")
WRITING = bool(os.environ.get("BRIDGE_WRITE_MATRIX"))
KEYS = {"member_key": "ben_key", "reports_key": "board", "admin_key": "finance"}
ROLES = (*PEOPLE, *KEYS)
SWITCHES = ("admin/login/", "admin/logout/")
"""They write a session of the caller's own and nothing else."""
WRITABLE = (
    *apps.get_app_config("auth").get_models(include_auto_created=True),
    *(Team, ApiKey, Budget, Route, RouteTarget, Price, Upstream, UpstreamPolicy, Drift),
    *(SavedView, Export, Purge, Identity, BudgetNotice, LogEntry),
)
"""What a person might write. The rest is the ledger and its sums, which the gateway writes."""
COMPARED = tuple(model._meta.db_table for model in WRITABLE)
RESTORED = (*COMPARED, "django_session", "proxy_exchange")
KEPT_BY_GATEWAY = {"proxy_apikey": {"last_used"}}
"""Columns that it writes some time after a request."""
SETTLED = (
    "SELECT count(*) FROM proxy_export WHERE state IN ('waiting', 'running')",
    "SELECT count(*) FROM proxy_purge WHERE state = 'running'",
)
"""What goes on in the background after its request was answered."""


class Database:
    """The gateway's database, seen and set from outside."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def link(self) -> Any:
        return contextlib.closing(sqlite3.connect(self.path, timeout=120, isolation_level=None))

    def rows(self) -> dict[str, list[Any]]:
        """All rows that a person might write, and their sessions."""
        with self.link() as link:
            found = {}
            for name in RESTORED:
                query = f'SELECT {self.columns(link, name)} FROM "{name}" ORDER BY 1'  # noqa: S608 - names of ours
                found[name] = link.execute(query).fetchall()
            return found

    def columns(self, link: sqlite3.Connection, table: str) -> str:
        found = [name for _, name, *_ in link.execute(f'PRAGMA table_info("{table}")')]
        return ", ".join(
            f'"{name}"' for name in found if name not in KEPT_BY_GATEWAY.get(table, ())
        )

    def restore(self, rows: dict[str, list[Any]]) -> None:
        """As it was, once nothing goes on in the background."""
        with self.link() as link:
            deadline = time.monotonic() + 60
            while any(link.execute(query).fetchone()[0] for query in SETTLED):
                assert time.monotonic() < deadline, "an export or a purge does not end"
                time.sleep(0.05)
            link.execute("PRAGMA foreign_keys = OFF")
            link.execute("BEGIN IMMEDIATE")
            for name, found in rows.items():
                link.execute(f'DELETE FROM "{name}"')  # noqa: S608 - as above
                if found:
                    marks = ",".join("?" * len(found[0]))
                    columns = self.columns(link, name)
                    link.executemany(f'INSERT INTO "{name}" ({columns}) VALUES ({marks})', found)  # noqa: S608
            link.execute("COMMIT")


class Company:
    """The running gateway, who writes there, and what is there."""

    def __init__(self, gateway: Gateway, told: dict[str, Any]) -> None:
        self.gateway, self.ids = gateway, {name: str(pk) for name, pk in told["ids"].items()}
        self.callers = {
            role: WebSession(gateway).sign_in(name, told["password"])
            for role, (name, *_) in PEOPLE.items()
        }
        for role, key in KEYS.items():
            self.callers[role] = WebSession(gateway)
            self.callers[role].cookies["csrftoken"] = "a" * 32  # the missing session is what counts
            self.callers[role].headers["x-api-key"] = told["secrets"][key]
        self.database = Database(gateway.folder / "data" / "ledger.sqlite3")
        self.at_first = self.database.rows()

    def filled(self, text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: self.ids[found[1]], text)

    def word(self, role: str, write: Write, compared: Sequence[str] = COMPARED) -> str:
        """``written``, ``login``, ``away`` (redirected), ``shown`` (the page, no change), a status."""
        path = "/" + self.filled(write.path)
        if write.path.startswith("api/"):
            body = b"" if write.body is None else self.filled(json.dumps(write.body)).encode()
            kind = "application/json"
        else:
            body = {
                name: [self.filled(one) for one in value] if isinstance(value, list) else self.filled(str(value))
                for name, value in write.body.items()
            }  # fmt: skip
            kind = FORM
        before = self.at_first
        if self.database.rows() != before:  # a case that failed half way must not fail the next one
            self.database.restore(before)
        try:
            answer = self.callers[role].send(write.method, path, body, kind)
        except OSError as lost:
            raise AssertionError(f"no answer ({lost}):\n{self.gateway.log[-3_000:]}") from lost
        after = self.database.rows()
        if before != after:
            self.database.restore(before)
        written = [name for name in compared if before[name] != after[name]]
        if written:
            return "written" if answer.status < 400 else f"{answer.status}-but-written:{written}"
        if answer.status == 302:
            return "login" if "/login/" in answer.headers["location"] else "away"
        return "shown" if answer.status == 200 else str(answer.status)


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Company]:
    with Gateway(tmp_path_factory.mktemp("writes"), key="") as gateway:
        # Each case undoes what it wrote; the gateway would revoke a restored key again (T49).
        (gateway.folder / "data" / revocations.NAME).symlink_to(os.devnull)
        yield Company(gateway, fill(gateway))


def table() -> dict[tuple[str, str], tuple[str, ...]]:
    lines = [line.split() for line in TABLE.read_text().splitlines() if line and line[0] != "#"]
    return {(pattern, whose): tuple(words) for pattern, whose, *words in lines}


def patterns(found: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every path that Django answers, without its last slash, and its view."""
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
"""Pages that take no write; a person who may everything posts to each of them."""


def test_every_write_of_the_api_and_every_form_of_the_admin_has_rows():
    methods = {"post", "put", "patch", "delete"}
    api = {
        (route.rstrip("/"), method.upper())
        for route, view in VIEWS.items()
        if hasattr(view, "cls")
        for method in methods & set(view.cls.http_method_names)
        if hasattr(view.cls, method)
    }
    covered = {
        (pattern, write.method) for pattern, targets in WRITES.items() for write in targets.values()
    }
    forms = re.compile(r"/(add|change|delete|rotate|revoke|password|stop|test|purge)/$")

    assert api - covered == set()
    assert {route for route in OTHER if forms.search(route)} == set()
    assert set(table()) == set(CASES)
    assert all(len(words) == len(ROLES) for words in table().values())


@pytest.mark.parametrize("route", OTHER)
def test_other_pages_write_nothing_whoever_posts_to_them(company: Company, route):
    fillings = {"<path:object_id>": company.ids["platform"], "<int:key_id>": company.ids["ci"],
                "<str:exchange_id>": company.ids["ci_request"], "<str:side>": "request",
                "<path:content_type_id>": "1", "(?P<url>.*)$": "nowhere/",
                "^(?P<app_label>auth|proxy)/$": "proxy/", "^(?P<app_label>proxy|auth)/$": "proxy/"}  # fmt: skip
    path = route
    for pattern, value in fillings.items():
        path = path.replace(pattern, value)

    but_the_log = [name for name in COMPARED if name != LogEntry._meta.db_table]  # notes readings
    body = {"action": "delete_selected", "post": "yes"}
    words = [
        company.word("root", Write(method, path, body), but_the_log)
        for method in ("POST", "PUT", "PATCH", "DELETE")
    ]

    assert not [word for word in words if "written" in word or word.startswith("5")]


@pytest.mark.parametrize(("pattern", "whose"), CASES)
def test_each_role_writes_what_the_table_says(company: Company, pattern, whose):
    found = tuple(company.word(role, WRITES[pattern][whose]) for role in ROLES)

    if WRITING:
        with TABLE.open("a") as lines:
            lines.write(f"{pattern} {whose} {' '.join(found)}\n")
        return
    assert dict(zip(ROLES, found, strict=True)) == dict(
        zip(ROLES, table()[pattern, whose], strict=True)
    )


def test_a_lead_is_offered_own_teams_keys_and_people_alone(company: Company):
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
