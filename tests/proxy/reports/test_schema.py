"""The schema of /api/v1/ and /v1/organizations/ is a promise: whatever is asked, the answer is one that it describes.

Every question goes over a socket and through the router.

A thousand questions in all; ``BRIDGE_SCHEMA_CASES=5000 pytest tests/proxy/reports/test_schema.py``
asks as many, and no operation fewer than 200 then. The ledger has all sorts of rows, and most
questions get a stretch of time, a zone and names that exist, so that rows are really answered.
What is set up is written too, by a superuser, into a database that forgets it after each operation.
"""

import math
import os
from dataclasses import replace
from datetime import timedelta

import pytest
import schemathesis
from django.utils.timezone import now
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from proxy.models import Budget, Export, ExportState, Route, Upstream
from proxy.reports import export_jobs
from proxy.reports.access import ReaderThrottle
from proxy.reports.docs import schema
from proxy.visibility import reader_of_key
from tests.fakes.served_client import TOKEN, ServedClient, as_wsgi
from tests.proxy.admin import cast

from .serving import deciding

CASES = int(os.environ.get("BRIDGE_SCHEMA_CASES", "500"))
LEAST = 200 if CASES >= 5000 else 16  # of each operation
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
PROMISED = schemathesis.openapi.from_dict(schema())
PROMISED.app = as_wsgi
OPERATIONS = {
    f"{one.method.upper()} {one.path}": one
    for one in (found.ok() for found in PROMISED.get_all_operations())
}
EACH = max(LEAST, math.ceil(CASES / len(OPERATIONS)))
RIGHT = EACH // 4  # of them, how many are nothing but right

LIKELY = {
    "from": st.sampled_from(["2026-11-18", "2026-11-20T05:45:00+05:45", "2026-10-01"]),
    "to": st.sampled_from(["2026-11-21", "2026-11-20T23:00:00Z"]),
    "tz": st.sampled_from(["UTC", "Asia/Kathmandu", "Europe/Berlin", "Pacific/Apia"]),
    "page": st.just(""),
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
WRITTEN = {  # by path: bodies that are right, whole for a POST and any part of them for a PATCH
    "keys": {"team": st.just("platform"), "name": UNIQUE},
    "teams": {"name": UNIQUE},
    "users": {"name": UNIQUE},
    "models": {"model": UNIQUE, "targets": st.lists(TARGET, min_size=1, max_size=3)},
    "upstreams": {"name": UNIQUE, **UPSTREAM},
    "prices": PRICE,
}
KEPT = {"name", "team"}  # a PATCH lets the row be found again


IDENTS = {"users": "user_ben", "workspaces": "wrkspc_platform"}


@pytest.fixture
def ledger(db, monkeypatch, tmp_path):
    """Requests of all sorts, priced and not, and who asks for them: by name of the caller."""
    monkeypatch.setattr(ReaderThrottle, "rate", "100000/s")  # we ask more than 600 a minute
    monkeypatch.setattr(export_jobs, "conf", replace(export_jobs.conf, data_dir=tmp_path))
    ci, _ = cast.key("ci", user=cast.staff("ben"), limits={"rpm": 5})
    first = cast.record(key=ci, opening={"session_id": "s1"})
    price = cast.price()
    cast.record(key=ci, opening={"session_id": "s1", "agent_id": "a"})
    cast.record(key=ci, closing={"outcome": "upstream_error", "status": 529, "usage": {}})
    cast.record(team="research", at=cast.NOON - timedelta(days=1), kept=False)
    cast.record(key=ci, closed=False)
    budget = Budget.objects.create(team=ci.team, usd=10)
    admin, secret = cast.key("finance", scopes=["admin"])
    route = Route.objects.create(model="claude-*")  # with a target: without, each PATCH is a 400
    busy = Upstream.objects.create(name="busy", dialect="chat", base_url="http://vllm/v1")
    route.targets.create(upstream=busy)
    names = {
        "request_id": first.pk,
        "session_id": "s1",
        "budget_id": budget.pk,
        "side": "request",
        "export_id": export_of(admin),
        "key_id": cast.key("spare")[0].pk,
        "team": cast.team("spare").name,
        "user": cast.staff("zoe").username,
        "route_id": route.pk,
        "upstream": Upstream.objects.create(
            name="idle", dialect="chat", base_url="http://vllm/v1"
        ).name,
        "price_id": price.pk,
        "ident": IDENTS | {"api_keys": f"apikey_{ci.pk}"},
    }
    secrets = {
        "admin": secret,
        "reports": cast.key("board", scopes=["reports"])[1],
        "messages": cast.key("cleo", of="research")[1],
        "stranger": "sk-br-nobody",
    }
    client = ServedClient()
    client.force_login(cast.superuser())
    cookies = {"csrftoken": TOKEN} | {name: one.value for name, one in client.cookies.items()}
    with deciding():
        yield names, secrets, cookies
    export_jobs.runner.join()


def export_of(key):
    """An export of this key that is done, and its file."""
    reader = export_jobs.frozen(reader_of_key(key))
    job = Export(pk="export_1", report="requests", format="csv", key=key, reader=reader)
    job.state, job.created, job.expires = ExportState.DONE, now(), now() + timedelta(days=1)
    job.save()
    path = export_jobs.path_of(job)
    path.parent.mkdir()
    path.write_text("id\r\nreq_1\r\n")
    return job.pk


def questions(operation):
    """Cases of the schema, right and wrong ones; mostly with values that exist."""
    modes = (GenerationMode.POSITIVE, *GenerationMode)  # the right ones twice as often
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes))
    real = real_query(operation)
    callers = st.sampled_from([usual_caller(operation)] * 7 + ["reports", "messages", "stranger"])
    written = st.none() | bodies(operation)
    return st.tuples(cases, st.none() | real | real | real, callers, written, st.booleans())


def right_questions(operation):
    """Only what should be answered: who may, of what exists, in the words of the schema."""
    cases = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    caller = st.just(usual_caller(operation))
    return st.tuples(cases, real_query(operation), caller, bodies(operation), st.just(False))


def real_query(operation):
    known = {one.name for one in operation.query}
    usual = {name: value for name, value in LIKELY.items() if name in known}
    if operation.path.endswith("/claude_code"):
        usual["starting_at"] = st.just("2026-11-20")
    if operation.path.endswith("/rehearsal/"):
        usual["model"] = FILTERS["model"]
    chosen = {name: value for name, value in FILTERS.items() if name in known - set(usual)}
    return st.fixed_dictionaries(usual, optional=chosen)


def usual_caller(operation):
    return "root" if is_written(operation) else "admin"


def is_written(operation):
    return operation.method.upper() != "GET" and operation.path.split("/")[3] in WRITTEN


def bodies(operation):
    """What may stand in place of a body that was drawn at random."""
    fields = WRITTEN.get(operation.path.split("/")[3], {})
    if operation.method.upper() == "POST" and fields:
        return st.fixed_dictionaries(fields)
    if operation.method.upper() == "PATCH":
        some = {name: field for name, field in fields.items() if name not in KEPT}
        return st.fixed_dictionaries({}, optional=some)
    return st.none()


def filled(operation, drawn, names):
    """Ids in the path that exist."""
    kind = operation.path.split("/")[3]
    known = {**names, "ident": names["ident"].get(kind, "")}
    return {name: known.get(name, value) for name, value in drawn.items()}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", OPERATIONS)
def test_no_question_breaks_the_promise_of_the_schema(ledger, name):
    names, secrets, cookies = ledger
    operation = OPERATIONS[name]
    statuses = []

    def ask(question):
        case, real, caller, body, keeps = question
        if real is not None:  # what was drawn at random stays where it is not known better
            case.query = {**(case.query or {}), **real} if keeps else real
            case.path_parameters = filled(operation, case.path_parameters or {}, names)
        if body is not None:
            case.body, case.media_type = body, "application/json"
            case.path_parameters = filled(operation, case.path_parameters or {}, names)
        case.headers = (
            {"x-api-key": secrets[caller]} if caller in secrets else {"X-CSRFToken": TOKEN}
        )
        case.cookies = cookies if caller == "root" else {}
        answer = case.call()
        statuses.append(answer.status_code)
        case.validate_response(answer, checks=CHECKS)

    # What is drawn changes with every constant of the code; that some are answered must not.
    drawn(right_questions(operation), RIGHT)(ask)()
    answered = {200, 201, 202, 204} & set(statuses)
    drawn(questions(operation), EACH - RIGHT)(ask)()

    assert answered
    assert len(statuses) >= EACH // 2  # fewer only where there is no more to ask


def drawn(strategy, examples):
    """A decorator: call the function with so many different draws, the same in each run."""

    def decorate(ask):
        return settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )(given(strategy)(ask))

    return decorate
