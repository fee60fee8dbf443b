"""An id as a row shows it is the id that each path, filter and body takes; an object has one shape."""

import json
from functools import partial

import pytest

from proxy.models import Budget, Pause, Route, Upstream
from tests.fakes.openapi import schema
from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db

DAY = "from=2026-11-20&to=2026-11-21"
REFERENCES = {
    "team": {"id", "name"},
    "key": {"id", "name"},
    "user": {"id", "email"},
    "upstream": {"id", "dialect"},
}
RESOURCES = {  # list -> the field with the id of a row
    "keys": "id", "teams": "id", "users": "id", "models": "id", "upstreams": "id", "prices": "id",
    "budgets": "id", "pauses": "id", "exports": "id", "webhooks": "id", "deliveries": "id",
    "reports": "id", f"requests?{DAY}": "id",
    f"sessions?{DAY}": "session_id",
}  # fmt: skip
FILTERS = [  # (list, field of its rows, parameter of the lists and reports that take the id)
    ("keys", "id", ("budgets?key_id=", f"requests?{DAY}&key_id=", f"usage?{DAY}&key_id=",
                    f"outcomes?{DAY}&group_by=day&key_id=", f"sessions?{DAY}&key_id=")),
    ("teams", "id", ("keys?team=", "models?team=", "budgets?team=", f"requests?{DAY}&team=",
                     f"usage?{DAY}&team=", f"top?{DAY}&team=", "search?q=files&team=")),
    ("users", "id", ("keys?user=", "budgets?user=", f"requests?{DAY}&user=")),
    ("webhooks", "id", ("deliveries?webhook_id=",)),
    ("upstreams", "id", ("prices?upstream=", "pauses?upstream=", f"requests?{DAY}&upstream=")),
    ("prices", "id", (f"requests?{DAY}&price_id=",)),
    (f"requests?{DAY}", "id", (f"requests?{DAY}&id=",)),
    (f"sessions?{DAY}", "session_id", (f"requests?{DAY}&session_id=", f"sessions?{DAY}&session_id=")),
]  # fmt: skip
BODIES = [  # (list with the referred row, field of the body, list to which a body is sent, the rest)
    ("teams", "team", "keys", {"name": "new"}),
    ("teams", "team", "models", {"model": "new-*", "targets": [{"upstream": "openai"}]}),
    ("teams", "team", "budgets", {"limit_usd": "5"}),
    ("teams", "team", "reports", {"name": "of-team", "report": "usage"}),
    ("keys", "key", "budgets", {"limit_usd": "5"}),
    ("users", "user", "budgets", {"limit_usd": "5"}),
    ("users", "user", "keys", {"team": "platform", "name": "new"}),
    ("upstreams", "upstream", "pauses", {"message": "later"}),
    ("upstreams", "upstream", "prices",
     {"model": "m", "since": "2026-01-01", "input": "1", "output": "2"}),
]  # fmt: skip


@pytest.fixture(scope="module")
def secret(module_rows):
    """The secret of a superuser's key; the database has one row of each resource."""
    with module_rows():
        return create_rows()


def create_rows():
    ben = factories.staff("ben")
    ci, _ = factories.key("ci", user=ben)
    openai = Upstream.objects.create(name="openai", dialect="responses", base_url="http://vllm/v1")
    price = factories.price()
    factories.record(
        key=ci,
        opening={"session_id": "s 1/é", "user": "ben"},
    )
    type(price).objects.update(upstream=openai)
    Route.objects.create(model="claude-*", team=ci.team).targets.create(upstream=openai)
    for owner in ({"team": ci.team}, {"key": ci}, {"user": ben}):
        Budget.objects.create(usd=10, **owner)
    Pause.objects.create(model="m", message="later", upstream=openai)
    secret = factories.key("terraform", of="ops", scopes=["admin"], user=factories.superuser())[1]
    call(secret, "POST", "exports", {"report": "usage", "format": "csv"})
    call(secret, "POST", "reports", {"name": "spend", "report": "usage"})
    webhook = {"name": "ops", "url": "https://ops.example.com/hook"}
    made = call(secret, "POST", "webhooks", webhook).json()
    call(secret, "POST", "deliveries", {"webhook_id": made["id"]})
    return secret


def call(secret, method, path, body=None):
    text = "" if body is None else json.dumps(body)
    route, _, query = path.partition("?")
    url = f"/api/v1/{route}{'' if route.endswith('/') else '/'}{'?' if query else ''}{query}"
    headers = {"x-api-key": secret}
    return ServedClient().generic(method, url, text, "application/json", headers=headers)


@pytest.fixture
def send(secret):
    """Send a request with the superuser's key."""
    return partial(call, secret)


def rows(send, path):
    response = send("GET", path)
    assert response.status_code == 200, response.content
    return response.json()["data"]


def first_row(send, path):
    """Return the row of the company platform, or the only row."""
    found = rows(send, path)
    return next((row for row in found if row.get("name") in {"platform", "ci", "ben"}), found[0])


@pytest.mark.parametrize("path", RESOURCES)
def test_the_id_of_a_row_is_the_id_in_its_path(send, path):
    row, field = first_row(send, path), RESOURCES[path]
    detail = send("GET", f"{path.partition('?')[0]}/{row[field]}/")

    assert detail.status_code == 200, detail.content
    assert detail.json()[field] == row[field]


def test_every_list_with_details_is_in_the_table():
    paths = {path.removeprefix("/api/v1/") for path in schema()["paths"] if "/api/v1/" in path}
    lists = {path.partition("/{")[0] for path in paths if path.count("/") == 2 and "{" in path}

    assert lists == {path.partition("?")[0] for path in RESOURCES}


@pytest.mark.parametrize(
    ("source", "field", "path"),
    [(source, field, path) for source, field, paths in FILTERS for path in paths],
)
def test_the_id_of_a_row_is_the_value_of_a_filter(send, source, field, path):
    value = first_row(send, source)[field]

    selected, other = rows(send, f"{path}{value}"), send("GET", f"{path}apikey_0")

    assert selected
    assert other.status_code in {200, 400}
    if other.status_code == 200:
        assert other.json()["data"] == []


@pytest.mark.parametrize(("source", "field", "target", "body"), BODIES)
def test_a_body_takes_an_id_or_a_reference_as_rows_show_it(send, source, field, target, body):
    ident = first_row(send, source)["id"]

    made = send("POST", target, {**body, field: ident})

    assert made.status_code == 201, made.content
    row = made.json()
    assert row[field]["id"] == ident
    if target != "prices":
        again = send("PATCH", f"{target}/{row['id']}", {field: row[field]})
        assert again.status_code == 200, again.content
        assert again.json()[field] == row[field]


@pytest.mark.parametrize("kind", ["team", "key", "upstream"])
def test_stop_takes_the_id_of_a_row(send, kind):
    ident = first_row(send, f"{kind}s")["id"]

    assert send("POST", "stop", {"kind": kind, "name": ident}).status_code == 202
    assert send("POST", "stop", {"kind": kind, "name": "apikey_0"}).status_code == 404


def test_a_budget_of_a_key_shows_the_key_that_its_body_named(send):
    key = first_row(send, "keys")

    (budget,) = rows(send, f"budgets?key_id={key['id']}")

    assert budget["key"] == {"id": key["id"], "name": "ci"}
    assert budget["team"] is None


def references(value, name=""):
    """Yield (name, object) for each object that stands for a team, key, user or upstream."""
    if isinstance(value, list):
        for item in value:
            yield from references(item, name)
    elif isinstance(value, dict):
        if name in REFERENCES:
            yield name, value
        for field, inner in value.items():
            yield from references(inner, field)


@pytest.mark.parametrize("path", [*RESOURCES, "me", "search?q=files"])
def test_an_object_has_one_shape_wherever_it_stands(send, path):
    body = send("GET", path).json()

    for name, found in references(body):
        assert set(found) == REFERENCES[name], name
    for row in body.get("data", [body]):
        assert {name for name in REFERENCES if isinstance(row.get(name), str)} == set()


def test_the_column_of_a_dimension_is_the_id_that_its_filter_takes(send):
    (row,) = rows(send, f"usage?{DAY}&group_by=team,user,key_id,upstream")
    key = first_row(send, "keys")

    assert (row["team"], row["user"], row["upstream"]) == ("platform", "ben", "openai")
    assert row["key_id"] == key["id"]
    for report in ("top", "latency", "errors", "cache", "comparison"):
        values = [one["value"] for one in rows(send, f"{report}?{DAY}&by=key_id")]
        assert set(values) <= {key["id"]}, report


@pytest.mark.parametrize(
    ("former", "current"),
    [
        ("session=s%201/%C3%A9", "session_id=s%201/%C3%A9"),
        ("min_cost=0", "min_cost_usd=0"),
        ("min_ms=0", "min_total_ms=0"),
    ],
)
def test_a_former_name_of_a_parameter_still_works(send, former, current):
    assert rows(send, f"requests?{DAY}&{former}") == rows(send, f"requests?{DAY}&{current}")
    both = send("GET", f"requests?{DAY}&{former}&{current}")
    assert both.status_code == 400


def test_an_export_takes_former_names(send):
    query = {"from": "2026-11-20", "session": ["s 1/é", "other"], "min_cost": 0}

    made = send("POST", "exports", {"report": "requests", "format": "csv", "query": query})

    assert made.status_code == 202, made.content
    assert made.json()["query"]["session_id"] == ["s 1/é", "other"]
    assert made.json()["query"]["min_cost_usd"] == "0"


def test_the_former_name_of_the_metric_still_works(send):
    former, current = (
        send("GET", f"top?{DAY}&metric={name}").json() for name in ("cost", "cost_usd")
    )

    assert former["data"] == current["data"]
    assert former["metric"] == "cost_usd"


@pytest.mark.parametrize("path", ["keys", "teams", "models", "budgets", "prices", "pauses"])
def test_configuration_lists_are_sorted(send, path):
    parameters = schema()["paths"][f"/api/v1/{path}/"]["get"]["parameters"]
    orders = next(one["schema"]["enum"] for one in parameters if one["name"] == "sort")

    for column in orders[::2]:
        ascending = [row["id"] for row in rows(send, f"{path}?sort={column}")]
        descending = [row["id"] for row in rows(send, f"{path}?sort=-{column}")]
        assert sorted(ascending, key=str) == sorted(descending, key=str)
    first, second = ([row["id"] for row in rows(send, f"{path}?sort={one}")] for one in orders[:2])
    assert first == second[::-1]


@pytest.mark.parametrize("path", [f"requests?{DAY}", "audit"])
def test_lists_of_records_are_sorted_in_both_directions(send, path):
    for minute in range(3):
        factories.record(at=factories.NOON.replace(minute=minute + 1))
    join = "&" if "?" in path else "?"
    expected = [row["id"] for row in rows(send, f"{path}{join}limit=100")]
    assert len(expected) >= 4

    def pages(sort):
        found, page = [], ""
        while page is not None:
            body = send("GET", f"{path}{join}limit=2&sort={sort}&page={page}").json()
            found += [row["id"] for row in body["data"]]
            page = body["next_page"]
        return found

    # Reading the audit log adds nothing to it, and no request is sent meanwhile.
    assert pages("-created_at") == expected
    assert pages("created_at") == expected[::-1]
