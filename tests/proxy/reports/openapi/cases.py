"""Random calls of the REST API that are valid or invalid under its OpenAPI document."""

from urllib.parse import urlencode

from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode

from tests.fakes.openapi_operations import CHECKS
from tests.fakes.servers.served_client import TOKEN

MAX_QUERY_LENGTH = 60_000  # the HTTP parser rejects longer heads before they reach a report

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


def check_operation(operation, seeded, cases, **where):
    """Send this number of cases, a quarter of them valid, and check every response.

    ``seeded``: the names, secrets and cookies of ``seed_objects``. ``where``: arguments of
    schemathesis for the call, such as ``base_url``. Return the statuses.
    """
    names, secrets, cookies = seeded["names"], seeded["secrets"], seeded["cookies"]
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
        response = case.call(**where)
        statuses.append(response.status_code)
        case.validate_response(response, checks=CHECKS)

    # Some cases must succeed, or the test proves nothing.
    valid = max(2, cases // 4)
    given_cases(valid_cases(operation), valid)(send)()
    assert {200, 201, 202, 204} & set(statuses), statuses
    given_cases(any_cases(operation), max(1, cases - valid))(send)()
    assert len(statuses) >= cases // 2  # fewer only if hypothesis runs out of cases
    return statuses


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
    if operation.path.endswith(("/dry-run/", "/rehearsal/")):
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
