"""The lists of what is set up, and one request's bodies as files."""

import json

import pytest
from django.contrib.admin.models import LogEntry

from proxy.models import Route, RouteTarget, Upstream
from tests.proxy.admin import cast

pytestmark = pytest.mark.django_db

SPOKEN = [
    (
        400.0,
        b'event: response.created\ndata: {"type":"response.created","response":{"id":"r"}}\n\n',
    ),
    (410.0, b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",'),
    (411.0, b'"item_id":"m","output_index":0,"content_index":0,"delta":"Hi"}\n\n'),
]


@pytest.fixture
def admin():
    return cast.key("finance", scopes=["admin"])


@pytest.fixture
def ask(client, admin):
    def ask(route, **query):
        return client.get(f"/api/v1/{route}", query, headers={"x-api-key": admin[1]})

    return ask


def test_lists_show_the_setup_and_no_secret(ask, admin, monkeypatch):
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
    cast.price()
    cast.staff("ben", groups=("team:platform",))

    answers = {
        name: ask(name).json()["data"]
        for name in ("keys", "teams", "users", "models", "upstreams", "prices")
    }

    assert answers["keys"][0]["prefix"] == admin[0].prefix
    assert answers["teams"][0]["name"] == "platform"
    assert answers["users"][0]["groups"] == ["team:platform"]
    assert answers["models"][0]["targets"] == [
        {"upstream": "openai", "model": "gpt-5.2", "weight": 1}
    ]
    assert answers["upstreams"][0]["has_secret"] is True
    assert answers["prices"][-1]["cache_write_5m"] is None
    told = json.dumps(answers)
    assert [
        word for word in (admin[1], "UPSTREAM_KEY", "sk-upstream", "hush") if word in told
    ] == []


def test_lists_have_pages_and_leave_as_csv(ask):
    cast.team("b")

    first = ask("teams", limit=1).json()
    second = ask("teams", limit=1, page=first["next_page"]).json()
    lines = ask("teams", format="csv").content.decode().splitlines()

    assert [page["data"][0]["name"] for page in (first, second)] == ["b", "platform"]
    assert second["next_page"] is None
    assert len(lines) == 3


def test_bodies_are_what_went_over_the_wire(ask):
    one = cast.record(body=cast.request_body(system="été"), reads=tuple(SPOKEN))

    sides = {
        side: ask(f"requests/{one.pk}/raw/{side}")
        for side in ("request", "response", "upstream_request", "upstream_response", "events")
    }

    assert {side: answer.status_code for side, answer in sides.items()} == dict.fromkeys(sides, 200)
    assert json.loads(sides["request"].content) == cast.request_body(system="été")
    assert json.loads(sides["response"].content) == cast.answer_body()
    assert json.loads(sides["upstream_request"].content)["model"] == "gpt-5.2"
    assert sides["upstream_response"].content == b"".join(body for _, body in SPOKEN)
    assert b'"text":"Hi"' in sides["events"].content.replace(b" ", b"")
    assert "attachment" in sides["request"]["Content-Disposition"]
    assert sides["request"]["X-Content-Type-Options"] == "nosniff"


def test_an_error_s_body_is_where_an_answer_s_would_be(ask):
    """That of a failover's first attempt has its number; the stream stays as it was."""
    first = (503, b"<h1>busy</h1>")
    failed = cast.record(failed=(first,), closing={"outcome": "upstream_error"})
    moved = cast.record(failed=(first,), reads=tuple(SPOKEN))

    def raw(row, side="upstream_response", **asked):
        answer = ask(f"requests/{row.pk}/raw/{side}", **asked)
        return answer.content if answer.status_code == 200 else answer.status_code

    assert raw(failed) == raw(failed, attempt=1) == raw(moved, attempt=1) == b"<h1>busy</h1>"
    assert raw(moved) == b"".join(body for _, body in SPOKEN)
    assert [raw(moved, attempt=2), raw(moved, attempt=0), raw(moved, "request", attempt=1)] == [
        404, 400, 404
    ]  # fmt: skip
    assert raw(failed, "events") == 404
    told = ask(f"requests/{failed.pk}/raw/upstream_response")
    assert told["Content-Type"] == "application/octet-stream"
    assert "attachment" in told["Content-Disposition"]


def test_a_body_that_was_refused_is_what_the_client_sent(ask):
    body = b'{"model": "m", "messages": [5, '
    row = cast.record(
        opening={"body": body, "faulty": True},
        closing={"outcome": "refused", "status": 400, "target": {}, "answer": None},
    )

    assert ask(f"requests/{row.pk}/raw/request").content == body
    assert ask(f"requests/{row.pk}/transcript/").json()["turns"] == []
    for side in ("response", "upstream_request", "upstream_response", "events"):
        assert ask(f"requests/{row.pk}/raw/{side}").status_code == 404


def test_what_is_not_kept_is_not_found(ask):
    one = cast.record(kept=False)

    for side in ("request", "response", "upstream_request", "upstream_response", "events", "x"):
        assert ask(f"requests/{one.pk}/raw/{side}").status_code == 404


def test_each_reading_by_key_leaves_a_line(ask, admin):
    one = cast.record()

    ask(f"requests/{one.pk}/transcript/")
    ask(f"requests/{one.pk}/raw/response")
    ask(f"requests/{one.pk}/raw/nothing")

    lines = LogEntry.objects.order_by("pk").values_list("object_id", "change_message")
    assert [ident for ident, _ in lines] == [one.pk, one.pk]
    assert all(admin[0].prefix in message for _, message in lines)
    assert "raw response" in lines[1][1]


def test_raw_bodies_need_a_permission_of_their_own(client):
    one = cast.record()
    client.force_login(cast.staff("olga", "view_exchange", "view_transcript"))

    assert client.get(f"/api/v1/requests/{one.pk}/transcript").status_code == 200
    assert client.get(f"/api/v1/requests/{one.pk}/raw/request").status_code == 403
