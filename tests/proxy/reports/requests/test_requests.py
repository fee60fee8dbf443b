"""The reports on requests and sessions."""

import io
import json
from datetime import timedelta
from decimal import Decimal

import pytest
from django.core.management import call_command

from proxy.models import Transcript
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db
DAY = {"from": "2026-11-20", "to": "2026-11-21"}


def test_a_row_has_the_recorded_values(get_report):
    factories.price()
    ci, _ = factories.key("ci")
    exchange = factories.record(
        key=ci,
        opening={"session_id": "s1", "stream": True},
        closing={"attempts": [{"ms": 1}, {"ms": 2}]},
    )

    row = get_report(f"requests/{exchange.pk}").json()

    assert row["id"] == exchange.pk
    assert row["key"] == {"id": f"apikey_{ci.pk}", "name": "ci"}
    assert row["team"] == {"id": "platform", "name": "platform"}
    assert (row["cost_usd"], row["priced"]) == ("0.00075", True)
    assert (row["usage_source"], row["attempts"], row["error"]) == ("upstream", 2, None)
    assert row["output_tps"] == 5.49
    assert row["created_at"] == "2026-11-20T12:00:00.000Z"
    assert "messages" not in row


def test_a_row_equals_the_line_of_exportledger(get_report):
    factories.price()
    exchange = factories.record(opening={"user": "ada@example.com"})

    row = get_report(f"requests/{exchange.pk}").json()
    out = io.StringIO()
    call_command("exportledger", stdout=out)
    line = json.loads(out.getvalue())

    assert row["user"] == {"id": "ada@example.com", "email": "ada@example.com"}
    assert (row["session_id"], row["retry_of"], row["traceparent"]) == (None, None, None)
    assert (row["aborted_by_client"], row["redacted"]) == (False, False)
    assert row["price_version"]
    assert sum(map(Decimal, row["cost_parts"].values())) == Decimal(row["cost_usd"])
    assert row == {name: line[name] for name in row}


@pytest.mark.parametrize(
    ("agent", "tags", "app"),
    [
        ("claude-cli/2.1.329 (external, cli)", {}, "cli"),
        ("claude-cli/2.1.329 (external, sdk-ts, agent-sdk/0.3.329)", {}, "sdk-ts"),
        ("claude-cli/2.1.329 (external, cli)", {"app": "nightly"}, "nightly"),
        ("Anthropic/Python 2.11.0", {}, None),
    ],
)
def test_the_app_is_read_from_the_user_agent_or_tag(get_report, agent, tags, app):
    exchange = factories.record(opening={"user_agent": agent, "tags": tags})

    assert get_report(f"requests/{exchange.pk}").json()["client"]["app"] == app


def test_an_unknown_price_is_null(get_report):
    exchange = factories.record()

    row = get_report(f"requests/{exchange.pk}").json()

    assert (row["cost_usd"], row["priced"]) == (None, False)


def test_pages_follow_by_key_even_while_rows_arrive(get_report):
    ids = [factories.record(at=factories.NOON + timedelta(minutes=n)).pk for n in range(5)]

    first = get_report("requests", limit=2, **DAY).json()
    factories.record(at=factories.NOON + timedelta(hours=1))
    second = get_report("requests", limit=2, page=first["next_page"], **DAY).json()
    third = get_report("requests", limit=2, page=second["next_page"], **DAY).json()

    seen = [row["id"] for response in (first, second, third) for row in response["data"]]
    assert seen == ids[::-1]
    assert (third["has_more"], third["next_page"]) == (False, None)


@pytest.mark.parametrize("route", ["requests", "keys"])
@pytest.mark.parametrize(("limit", "page"), [("limit[]", "page[]"), ("limit", "page")])
def test_pages_take_every_spelling_of_their_parameters(get_report, route, limit, page):
    times = DAY if route == "requests" else {}
    for name in ("ci", "laptop"):
        factories.record(key=factories.key(name)[0])

    first = get_report(route, **times, **{limit: "1.0"}).json()
    second = get_report(route, **times, **{limit: "1.0", page: f" {first['next_page']} "}).json()

    assert (len(first["data"]), len(second["data"])) == (1, 1)
    assert first["data"][0]["id"] != second["data"][0]["id"]


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({"session": "s1"}, 1),
        ({"status": "200"}, 1),
        ({"status": "502,200"}, 2),
        ({"outcome": "upstream_error"}, 1),
        ({"error_type": "api_error"}, 1),
        ({"error_source": "upstream"}, 1),
        ({"min_ms": "5000"}, 1),
        ({"min_cost": "0.0007"}, 1),
        ({"tool": "Bash"}, 1),
        ({"tool": "Ba"}, 0),
        ({"tool": "%"}, 0),
        ({"stream": "false"}, 0),
        ({"stream": "true"}, 2),
        ({"has_thinking": "true"}, 1),
        ({"has_notes": "true"}, 1),
        ({"state": "open"}, 0),
        ({"model": "claude-opus-5-5"}, 2),
        ({"user": "unknown"}, 0),
        ({"context_window": "0-200k"}, 1),
        ({"context_window": "200k-1M"}, 0),
        ({"client": "claude-cli", "team": "platform"}, 2),
    ],
)
def test_a_filter_returns_this_number_of_rows(get_report, query, count):
    factories.price()
    factories.record(
        answer=factories.ANSWER,
        opening={"session_id": "s1"},
        closing={"notes": [{"path": "x", "fate": "dropped", "reason": "y"}]},
    )
    factories.record(
        closing={
            "outcome": "upstream_error",
            "status": 502,
            "error_type": "api_error",
            "error_source": "upstream",
            "usage": {},
            "total_ms": 1.0,
            "answer": None,
        }
    )

    assert len(get_report("requests", **query, **DAY).json()["data"]) == count


def test_each_session_is_listed_once_with_its_totals(get_report):
    factories.price()
    for n in range(50):
        factories.record(at=factories.NOON + timedelta(seconds=n), opening={"session_id": "long"})
    factories.record(
        at=factories.NOON + timedelta(hours=1), opening={"session_id": "b", "agent_id": "a1"}
    )
    factories.record(at=factories.NOON + timedelta(hours=2), opening={"session_id": "c"})
    factories.record(at=factories.NOON + timedelta(hours=3))  # no session

    first = get_report("sessions", limit=2, **DAY).json()
    second = get_report("sessions", limit=2, page=first["next_page"], **DAY).json()

    rows = [*first["data"], *second["data"]]
    assert [(row["session_id"], row["requests"], row["agents"]) for row in rows] == [
        ("c", 1, 0),
        ("b", 1, 1),
        ("long", 50, 0),
    ]
    assert rows[2]["cost_usd"] == "0.0375"
    assert rows[2]["models"] == ["claude-opus-5-5"]
    assert second["next_page"] is None


ORDERS = {
    "last_at": ["b", "c", "free", "a"],
    "-started_at": ["free", "c", "b", "a"],
    "-requests": ["b", "a", "c", "free"],
    "cost_usd": ["free", "a", "c", "b"],
    "-output_tokens": ["b", "a", "c", "free"],
}


def test_sessions_are_sorted_by_a_column_over_all_pages(get_report):
    factories.price()
    for name, hours in {"a": [0, 5], "b": [1, 1, 1], "c": [2, 2], "free": [3]}.items():
        for hour in hours:
            at, closing = factories.NOON + timedelta(hours=hour), {}
            if name == "free":  # nothing is known about its tokens, so its cost is not known
                closing = {"outcome": "upstream_error", "usage": {}, "answer": None}
            factories.record(at=at, opening={"session_id": name}, closing=closing)

    def pages(sort):
        page = ""
        while page is not None:
            body = get_report("sessions", limit=1, sort=sort, page=page, **DAY).json()
            yield from body["data"]
            page = body["next_page"]

    for sort, expected in ORDERS.items():
        assert [row["session_id"] for row in pages(sort)] == expected, sort
        lines = get_report("sessions", sort=sort, format="ndjson", **DAY).text.splitlines()
        assert [json.loads(line)["session_id"] for line in lines] == expected, sort


def test_sums_of_sessions_sort_at_most_a_month_and_have_cursors_of_their_own(get_report):
    for name in ("a", "b"):
        factories.record(opening={"session_id": name})
    page = get_report("sessions", limit=1, sort="-requests", **DAY).json()["next_page"]

    for sort in ("requests", "-last_at", "-cost_usd"):
        wrong = get_report("sessions", limit=1, sort=sort, page=page, **DAY)
        assert (wrong.status_code, "next_page" in wrong.text) == (400, True)
    year = {"from": "2026-01-01", "to": "2026-12-01"}
    message = "-requests is for 31 days at most"
    assert message in get_report("sessions", sort="-requests", **year).text
    assert get_report("sessions", sort="-last_at", **year).status_code == 200


def test_a_session_with_a_slash_in_its_id_has_its_requests_in_order(get_report):
    ids = [
        factories.record(at=factories.NOON + timedelta(minutes=n), opening={"session_id": "s/1"}).pk
        for n in range(3)
    ]
    factories.record(opening={"session_id": "other"})

    session = get_report("sessions/s/1").json()

    assert [row["id"] for row in session["data"]] == ids
    assert session["requests"] == 3
    assert get_report("sessions/s").status_code == 404


def test_the_list_takes_a_fixed_number_of_queries(get_report, django_assert_num_queries):
    factories.record()
    # key, its timestamps, page, archived months, names of teams
    with django_assert_num_queries(5):
        get_report("requests", **DAY)
    for _ in range(20):
        factories.record()
    with django_assert_num_queries(5):
        get_report("requests", **DAY)


@pytest.mark.parametrize("column", ["manifest", "stream"])
def test_a_broken_transcript_is_reported_and_lists_still_work(get_report, column):
    broken = factories.record(reads=((1.0, b"data: x\n\n"),))
    intact = factories.record(at=factories.NOON + timedelta(minutes=1))
    Transcript.objects.filter(pk=broken.pk).update(**{column: b"no zstd"})

    transcript = get_report(f"requests/{broken.pk}/transcript")
    sides = [get_report(f"requests/{broken.pk}/raw/{side}") for side in ("request", "events")]

    for response in (transcript, *sides):
        assert response.status_code == 404
        assert "stored but broken" in response.json()["error"]["message"]
    assert get_report(f"requests/{broken.pk}").status_code == 200
    assert [row["id"] for row in get_report("requests", **DAY).json()["data"]] == [
        intact.pk,
        broken.pk,
    ]
    assert get_report(f"requests/{intact.pk}/transcript").status_code == 200
