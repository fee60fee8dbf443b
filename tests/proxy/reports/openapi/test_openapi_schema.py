"""Responses of /api/v1/ and /v1/organizations/ match the OpenAPI schema, for generated requests.

Every request goes through the router. The fast lane sends 4 for each operation, the slow lane 5,000
in all; ``BRIDGE_SCHEMA_CASES`` sets another number in all. The ledger has rows of all kinds.
Most requests have an existing time range, zone and names, so that responses contain rows. A
superuser sends the writes; the database rolls back after each operation.
"""

import math
from datetime import timedelta
from urllib.parse import urlencode

import pytest
import schemathesis
from django.contrib.auth.models import Group
from django.utils.timezone import now
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from proxy.ledger.webhooks.outbox import record_test_event
from proxy.models import (
    Budget,
    Export,
    ExportState,
    Pause,
    Route,
    SavedReport,
    Team,
    Upstream,
    Webhook,
)
from proxy.permissions.row_permissions import reader_of_key
from proxy.reports.core.permissions import ReaderThrottle
from proxy.reports.exports import jobs
from tests.fakes.openapi import schema
from tests.fakes.servers.served_client import TOKEN, ServedClient, as_wsgi
from tests.lanes import repeat
from tests.proxy.admin import factories
from tests.proxy.reports.live_server import gateway_snapshot

MAX_QUERY_LENGTH = 60_000  # the HTTP parser rejects longer heads before they reach a report
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
SCHEMA = schemathesis.openapi.from_dict(schema())
SCHEMA.app = as_wsgi
OPERATIONS = {
    f"{one.method.upper()} {one.path}": one
    for one in (operation_result.ok() for operation_result in SCHEMA.get_all_operations())
}
CASES = repeat(fast=100, slow=5_000, variable="BRIDGE_SCHEMA_CASES")
PER_OPERATION = max(4, math.ceil(CASES / len(OPERATIONS)))
VALID = max(2, PER_OPERATION // 4)  # cases per operation with only valid values

COMMON = {
    "from": st.sampled_from(["2026-11-18", "2026-11-20T05:45:00+05:45", "2026-10-01"]),
    "to": st.sampled_from(["2026-11-21", "2026-11-20T23:00:00Z"]),
    "tz": st.sampled_from(["UTC", "Asia/Kathmandu", "Europe/Berlin", "Pacific/Apia"]),
    "page": st.just(""),
    "q": st.sampled_from(["hello", '"how are you" hello']),
    "starting_at": st.sampled_from(["2026-11-18T00:00:00Z", "2026-11-20T05:45:00+05:45"]),
    "ending_at": st.sampled_from(["2026-11-21T00:00:00Z", "2026-11-20T13:00:00Z"]),
    "limit": st.integers(1, 31),
}
FILTERS = {
    "team": st.sampled_from(["platform", "research"]),
    "model": st.just("claude-opus-5-5"),
    "session": st.just("s1"),
    "outcome": st.sampled_from(["completed", "upstream_error"]),
    "format": st.sampled_from(["json", "csv", "ndjson"]),
}


UNIQUE = st.integers(1, 10**9).map("n{}".format)
TARGET = st.fixed_dictionaries({"upstream": st.just("idle")}, optional={"weight": st.just(2)})
UPSTREAM = {"dialect": st.just("chat"), "base_url": st.just("http://vllm/v1")}
PRICE = {
    "model": UNIQUE,
    "since": st.just("2026-01-01"),
    "input": st.just("1"),
    "output": st.just("2"),
}
BODIES = {  # by path: valid bodies; a PATCH has some of the fields
    "keys": {"team": st.just("platform"), "name": UNIQUE},
    "teams": {"name": UNIQUE},
    "users": {"name": UNIQUE},
    "models": {"model": UNIQUE, "targets": st.lists(TARGET, min_size=1, max_size=3)},
    "upstreams": {"name": UNIQUE, **UPSTREAM},
    "prices": PRICE,
    "budgets": {"team": st.just("platform"), "limit_usd": st.just("5")},
    "pauses": {"model": UNIQUE, "message": st.just("back at noon")},
    "reports": {"name": UNIQUE, "report": st.just("usage"), "team": st.just("platform")},
    "webhooks": {"name": UNIQUE, "url": st.just("https://hooks.example.com/x")},
    "deliveries": {"webhook_id": st.just(1)},
    "stop": {"kind": st.just("team"), "name": st.just("platform")},
}
UNCHANGED = {"name", "team"}  # a PATCH does not change the fields that identify the row


IDENTS = {"users": "user_ben", "workspaces": "wrkspc_platform"}


@pytest.fixture
def ledger(db, settings, monkeypatch, tmp_path):
    """Create requests of all kinds; yield names for paths, keys by caller and cookies."""
    # The test sends more than 600 requests a minute, and REST framework reads the rate from the class.
    monkeypatch.setattr(ReaderThrottle, "rate", "100000/s")
    settings.DATA_DIR = tmp_path
    ci, _ = factories.key("ci", user=factories.staff("ben"), limits={"rpm": 5})
    first = factories.record(key=ci, opening={"session_id": "s1"})
    price = factories.price()
    factories.record(key=ci, opening={"session_id": "s1", "agent_id": "a"})
    factories.record(key=ci, closing={"outcome": "upstream_error", "status": 529, "usage": {}})
    factories.record(team="research", at=factories.NOON - timedelta(days=1), with_content=False)
    factories.record(key=ci, closed=False)
    budget = Budget.objects.create(team=ci.team, usd=10)
    admin, secret = factories.key("finance", scopes=["admin"])
    root = factories.superuser()
    root.groups.add(Group.objects.get_or_create(name="team:platform")[0])
    Team.objects.filter(name="platform").update(member_keys={"count": 10_000})
    route = Route.objects.create(model="claude-*")  # a PATCH of a route without a target is a 400
    busy = Upstream.objects.create(name="busy", dialect="chat", base_url="http://vllm/v1")
    route.targets.create(upstream=busy)
    webhook = Webhook(pk=1, name="ops", url="https://hooks.example.com/x", enabled=False)
    webhook.give_secret()
    webhook.save()
    names = {
        "webhook_id": webhook.pk,
        "report": SavedReport.objects.create(name="r", report="usage", team=ci.team).name,
        "delivery_id": record_test_event(webhook).pk,
        "request_id": first.pk,
        "session_id": "s1",
        "budget_id": f"budget_{budget.pk}",
        "side": "request",
        "export_id": finished_export(admin),
        "key_id": f"apikey_{factories.key('spare', user=root)[0].pk}",
        "team": factories.team("spare").name,
        "user": factories.staff("zoe").username,
        "route_id": route.pk,
        "upstream": Upstream.objects.create(
            name="idle", dialect="chat", base_url="http://vllm/v1"
        ).name,
        "price_id": price.pk,
        "pause_id": Pause.objects.create(model="m", message="later").pk,
        "ident": IDENTS | {"api_keys": f"apikey_{ci.pk}"},
    }
    secrets = {
        "admin": secret,
        "reports": factories.key("research-bot", scopes=["reports"])[1],
        "messages": factories.key("cleo", of="research")[1],
        "stranger": "sk-br-unknown",
    }
    client = ServedClient()
    client.force_login(root)
    cookies = {"csrftoken": TOKEN} | {name: one.value for name, one in client.cookies.items()}
    with gateway_snapshot():
        yield names, secrets, cookies
    jobs.runner.join()


def finished_export(key):
    """Create a finished export of this key with its file."""
    reader = jobs.reader_as_json(reader_of_key(key))
    job = Export(pk="export_1", report="requests", format="csv", key=key, reader=reader)
    job.state, job.created, job.expires = ExportState.DONE, now(), now() + timedelta(days=1)
    job.save()
    path = jobs.file_path(job)
    path.parent.mkdir()
    path.write_text("id\r\nreq_1\r\n")
    return job.pk


def any_cases(operation):
    """Return valid and invalid cases of the schema, most with existing values."""
    modes = (GenerationMode.POSITIVE, *GenerationMode)  # valid cases twice as often
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes))
    query = valid_query(operation)
    callers = st.sampled_from([usual_caller(operation)] * 7 + ["reports", "messages", "stranger"])
    written = st.none() | bodies(operation)
    return st.tuples(cases, st.none() | query | query | query, callers, written, st.booleans())


def valid_cases(operation):
    """Return valid cases with existing values from permitted callers."""
    cases = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    caller = st.just(usual_caller(operation))
    return st.tuples(cases, valid_query(operation), caller, bodies(operation), st.just(False))


def valid_query(operation):
    known = {one.name for one in operation.query}
    common = {name: value for name, value in COMMON.items() if name in known}
    if operation.path.endswith("/claude_code"):
        common["starting_at"] = st.just("2026-11-20")
    if operation.path.endswith("/rehearsal/"):
        common["model"] = FILTERS["model"]
    chosen = {name: value for name, value in FILTERS.items() if name in known - set(common)}
    return st.fixed_dictionaries(common, optional=chosen)


def usual_caller(operation):
    return "root" if is_write(operation) or is_of_own_keys(operation) else "admin"


def is_of_own_keys(operation):
    return operation.path.startswith("/api/v1/me/keys/")


def is_write(operation):
    return operation.method.upper() != "GET" and operation.path.split("/")[3] in BODIES


def bodies(operation):
    """Return valid bodies that replace random ones."""
    if operation.path.endswith(("/webhooks/{webhook_id}/rotate/", "/redeliver/")):
        return st.just({})
    if operation.path.endswith("/rotate/"):
        return st.fixed_dictionaries({}, optional={"overlap_h": st.integers(0, 2160)})
    kind = "keys" if is_of_own_keys(operation) else operation.path.split("/")[3]
    fields = BODIES.get(kind, {})
    if operation.method.upper() == "POST" and fields:
        return st.fixed_dictionaries(fields)
    if operation.method.upper() == "PATCH":
        some = {name: field for name, field in fields.items() if name not in UNCHANGED}
        return st.fixed_dictionaries({}, optional=some)
    return st.none()


def fill_path(operation, parameters, names):
    """Return the path parameters with existing ids."""
    kind = operation.path.split("/")[3]
    known = {**names, "ident": names["ident"].get(kind, "")}
    return {name: known.get(name, value) for name, value in parameters.items()}


def shorten(query):
    """Halve the values of a query, and the number of its fields, until the HTTP parser accepts it."""
    while len(urlencode(query or {}, doseq=True, errors="replace")) >= MAX_QUERY_LENGTH:
        items = [*query.items()]
        query = {
            name[:200]: value[: len(value) // 2] if isinstance(value, str | list) else value
            for name, value in items[: max(1, len(items) // 2)]
        }
    return query


@pytest.mark.repeated
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_response_matches_the_schema(ledger, name):
    names, secrets, cookies = ledger
    operation = OPERATIONS[name]
    statuses = []

    def send(case_data):
        case, query, caller, body, keep_random = case_data
        if query is not None:  # keep random values if keep_random is set
            case.query = {**(case.query or {}), **query} if keep_random else query
            case.path_parameters = fill_path(operation, case.path_parameters or {}, names)
        if body is not None:
            case.body, case.media_type = body, "application/json"
            case.path_parameters = fill_path(operation, case.path_parameters or {}, names)
        case.query = shorten(case.query)
        case.headers = (
            {"x-api-key": secrets[caller]} if caller in secrets else {"X-CSRFToken": TOKEN}
        )
        case.cookies = cookies if caller == "root" else {}
        response = case.call()
        statuses.append(response.status_code)
        case.validate_response(response, checks=CHECKS)

    # Some cases must succeed, or the test proves nothing.
    given_cases(valid_cases(operation), VALID)(send)()
    successes = {200, 201, 202, 204} & set(statuses)
    given_cases(any_cases(operation), PER_OPERATION - VALID)(send)()

    assert successes
    assert len(statuses) >= PER_OPERATION // 2  # fewer only if hypothesis runs out of cases


def given_cases(strategy, examples):
    """Return a decorator that calls a function with this number of cases, the same in each run."""

    def decorator(send):
        return hypothesis_settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )(given(strategy)(send))

    return decorator
