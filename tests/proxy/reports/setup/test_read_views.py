"""The lists of the configuration, and the raw bodies of a request."""

import json

import pytest

from proxy.models import Route, RouteTarget, Upstream
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db

READS = [
    (
        400.0,
        b'event: response.created\ndata: {"type":"response.created","response":{"id":"r"}}\n\n',
    ),
    (410.0, b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",'),
    (411.0, b'"item_id":"m","output_index":0,"content_index":0,"delta":"Hi"}\n\n'),
]


@pytest.fixture
def admin():
    return factories.key("finance", scopes=["admin"])


@pytest.fixture
def get_report(client, admin):
    def get_report(route, **query):
        return client.get(f"/api/v1/{route}", query, headers={"x-api-key": admin[1]})

    return get_report


def test_lists_contain_the_configuration_without_secrets(get_report, admin, monkeypatch):
    monkeypatch.setenv("UPSTREAM_KEY", "sk-upstream-secret")
    upstream = Upstream.objects.create(
        name="openai",
        dialect="responses",
        base_url="https://api.openai.com/v1",
        secret={"env": "UPSTREAM_KEY"},
        extra_body={"password": "hush"},
    )
    route = Route.objects.create(model="claude-*")
    RouteTarget.objects.create(route=route, upstream=upstream, model="gpt-5.2")
    factories.price()
    factories.staff("ben", groups=("team:platform",))

    answers = {
        name: get_report(name).json()["data"]
        for name in ("keys", "teams", "users", "models", "upstreams", "prices")
    }

    assert answers["keys"][0]["prefix"] == admin[0].prefix
    assert answers["teams"][0]["name"] == "platform"
    assert answers["users"][0]["groups"] == ["team:platform"]
    assert answers["models"][0]["targets"] == [
        {
            "upstream": {"id": "openai", "dialect": "responses"},
            "model": "gpt-5.2",
            "weight": 1,
            "when": {},
        }
    ]
    assert answers["upstreams"][0]["has_secret"] is True
    assert answers["prices"][-1]["cache_write_5m"] is None
    text = json.dumps(answers)
    assert [
        word for word in (admin[1], "UPSTREAM_KEY", "sk-upstream", "hush") if word in text
    ] == []


def test_lists_have_pages_and_csv(get_report):
    factories.team("b")

    first = get_report("teams", limit=1).json()
    second = get_report("teams", limit=1, page=first["next_page"]).json()
    lines = get_report("teams", format="csv").content.decode().splitlines()

    assert [page["data"][0]["name"] for page in (first, second)] == ["b", "platform"]
    assert second["next_page"] is None
    assert len(lines) == 3


def test_raw_bodies_equal_what_was_sent(get_report):
    exchange = factories.record(body=factories.request_body(system="été"), reads=tuple(READS))

    sides = {
        side: get_report(f"requests/{exchange.pk}/raw/{side}")
        for side in ("request", "response", "upstream_request", "upstream_response", "events")
    }

    assert {side: answer.status_code for side, answer in sides.items()} == dict.fromkeys(sides, 200)
    assert json.loads(sides["request"].content) == factories.request_body(system="été")
    assert json.loads(sides["response"].content) == factories.answer_body()
    assert json.loads(sides["upstream_request"].content)["model"] == "gpt-5.2"
    assert sides["upstream_response"].content == b"".join(body for _, body in READS)
    assert b'"text":"Hi"' in sides["events"].content.replace(b" ", b"")
    assert "attachment" in sides["request"]["Content-Disposition"]
    assert sides["request"]["X-Content-Type-Options"] == "nosniff"


def test_the_raw_response_of_a_failed_attempt_is_its_error_body(get_report):
    """After a failover, ``attempt`` selects the error of the first attempt."""
    first = (503, b"<h1>busy</h1>")
    failed = factories.record(failed=(first,), closing={"outcome": "upstream_error"})
    moved = factories.record(failed=(first,), reads=tuple(READS))

    def raw(row, side="upstream_response", **query):
        answer = get_report(f"requests/{row.pk}/raw/{side}", **query)
        return answer.content if answer.status_code == 200 else answer.status_code

    assert raw(failed) == raw(failed, attempt=1) == raw(moved, attempt=1) == b"<h1>busy</h1>"
    assert raw(moved) == b"".join(body for _, body in READS)
    assert [raw(moved, attempt=2), raw(moved, attempt=0), raw(moved, "request", attempt=1)] == [
        404, 400, 404
    ]  # fmt: skip
    assert raw(failed, "events") == 404
    response = get_report(f"requests/{failed.pk}/raw/upstream_response")
    assert response["Content-Type"] == "application/octet-stream"
    assert "attachment" in response["Content-Disposition"]


def test_the_raw_body_of_a_refused_request_is_what_the_client_sent(get_report):
    body = b'{"model": "m", "messages": [5, '
    row = factories.record(
        opening={"body": body, "faulty": True},
        closing={"outcome": "refused", "status": 400, "target": {}, "answer": None},
    )

    assert get_report(f"requests/{row.pk}/raw/request").content == body
    assert get_report(f"requests/{row.pk}/transcript/").json()["turns"] == []
    for side in ("response", "upstream_request", "upstream_response", "events"):
        assert get_report(f"requests/{row.pk}/raw/{side}").status_code == 404


def test_raw_bodies_of_a_request_without_a_transcript_are_404(get_report):
    exchange = factories.record(with_content=False)

    for side in ("request", "response", "upstream_request", "upstream_response", "events", "x"):
        assert get_report(f"requests/{exchange.pk}/raw/{side}").status_code == 404


def test_each_access_with_a_key_is_logged(get_report, admin):
    exchange = factories.record()

    get_report(f"requests/{exchange.pk}/transcript/")
    get_report(f"requests/{exchange.pk}/raw/response")
    get_report(f"requests/{exchange.pk}/raw/nothing")

    entries = factories.audit()
    assert [(entry.object_id, entry.key) for entry in entries] == [(exchange.pk, str(admin[0]))] * 2
    assert entries[1].detail == "download of the raw response"


def test_raw_bodies_need_a_permission_of_their_own(client):
    exchange = factories.record()
    client.force_login(factories.staff("olga", "view_exchange", "view_transcript"))

    assert client.get(f"/api/v1/requests/{exchange.pk}/transcript").status_code == 200
    assert client.get(f"/api/v1/requests/{exchange.pk}/raw/request").status_code == 403


def test_an_upstream_with_damaged_credentials_does_not_hide_the_others(get_report):
    for name, credentials in (("damaged", ["aws"]), ("sound", {"kind": "aws"})):
        Upstream.objects.create(name=name, base_url="https://a.example", credentials=credentials)

    found = {row["id"]: row["credentials_kind"] for row in get_report("upstreams").json()["data"]}

    assert found == {"damaged": None, "sound": "aws"}
