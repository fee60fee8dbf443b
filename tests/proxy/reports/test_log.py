"""Requests and sessions over REST."""

from datetime import timedelta
from decimal import Decimal

import pytest

from proxy.models import Transcript
from proxy.record import export
from tests.proxy.admin import cast

pytestmark = pytest.mark.django_db
DAY = {"from": "2026-11-20", "to": "2026-11-21"}


def test_a_row_carries_what_was_recorded(ask):
    cast.price()
    ci, _ = cast.key("ci")
    one = cast.record(
        key=ci,
        opening={"session_id": "s1", "stream": True},
        closing={"attempts": [{"ms": 1}, {"ms": 2}]},
    )

    row = ask(f"requests/{one.pk}").json()

    assert row["id"] == one.pk
    assert row["key"] == {"id": f"apikey_{ci.pk}", "name": "ci"}
    assert row["team"] == {"id": "wrkspc_platform", "name": "platform"}
    assert (row["cost_usd"], row["priced"]) == ("0.00075", True)
    assert (row["usage_source"], row["attempts"], row["error"]) == ("upstream", 2, None)
    assert row["output_tps"] == 5.49
    assert row["created_at"] == "2026-11-20T12:00:00.000Z"
    assert "messages" not in row


def test_a_row_says_the_same_as_the_line_of_exportledger(ask):
    cast.price()
    one = cast.record(opening={"user": "ada@example.com"})

    row, line = ask(f"requests/{one.pk}").json(), export.request_row(one)

    assert row["user"] == {"id": "user_ada@example.com", "email": "ada@example.com"}
    assert (row["session_id"], row["retry_of"], row["traceparent"]) == (None, None, None)
    assert (row["aborted_by_client"], row["redacted"]) == (False, False)
    assert row["price_version"]
    assert sum(map(Decimal, row["cost_parts"].values())) == Decimal(row["cost_usd"])
    shared = set(row) & set(line) - {
        "client",
        "cost_usd",
    }  # user agent beside; money at its shortest
    assert {name: row[name] for name in shared} == {name: line[name] for name in shared}


@pytest.mark.parametrize(
    ("agent", "tags", "app"),
    [
        ("claude-cli/2.1.329 (external, cli)", {}, "cli"),
        ("claude-cli/2.1.329 (external, sdk-ts, agent-sdk/0.3.329)", {}, "sdk-ts"),
        ("claude-cli/2.1.329 (external, cli)", {"app": "nightly"}, "nightly"),
        ("Anthropic/Python 2.11.0", {}, None),
    ],
)
def test_claude_code_tells_which_face_of_it_asked(ask, agent, tags, app):
    one = cast.record(opening={"user_agent": agent, "tags": tags})

    assert ask(f"requests/{one.pk}").json()["client"]["app"] == app


def test_an_unknown_price_is_null(ask):
    one = cast.record()

    row = ask(f"requests/{one.pk}").json()

    assert (row["cost_usd"], row["priced"]) == (None, False)


def test_pages_follow_by_key_even_while_rows_arrive(ask):
    ids = [cast.record(at=cast.NOON + timedelta(minutes=n)).pk for n in range(5)]

    first = ask("requests", limit=2, **DAY).json()
    cast.record(at=cast.NOON + timedelta(hours=1))
    second = ask("requests", limit=2, page=first["next_page"], **DAY).json()
    third = ask("requests", limit=2, page=second["next_page"], **DAY).json()

    seen = [row["id"] for answer in (first, second, third) for row in answer["data"]]
    assert seen == ids[::-1]
    assert (third["has_more"], third["next_page"]) == (False, None)


@pytest.mark.parametrize(
    ("query", "hits"),
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
        ({"user": "nobody"}, 0),
        ({"context_window": "0-200k"}, 1),
        ({"context_window": "200k-1M"}, 0),
        ({"client": "claude-cli", "team": "platform"}, 2),
    ],
)
def test_filters(ask, query, hits):
    cast.price()
    cast.record(
        answer=cast.SAID,
        opening={"session_id": "s1"},
        closing={"notes": [{"path": "x", "fate": "dropped", "reason": "y"}]},
    )
    cast.record(
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

    assert len(ask("requests", **query, **DAY).json()["data"]) == hits


def test_sessions_are_listed_once_with_all_they_hold(ask):
    cast.price()
    for n in range(50):
        cast.record(at=cast.NOON + timedelta(seconds=n), opening={"session_id": "long"})
    cast.record(at=cast.NOON + timedelta(hours=1), opening={"session_id": "b", "agent_id": "a1"})
    cast.record(at=cast.NOON + timedelta(hours=2), opening={"session_id": "c"})
    cast.record(at=cast.NOON + timedelta(hours=3))  # without a session

    first = ask("sessions", limit=2, **DAY).json()
    second = ask("sessions", limit=2, page=first["next_page"], **DAY).json()

    rows = [*first["data"], *second["data"]]
    assert [(row["session_id"], row["requests"], row["agents"]) for row in rows] == [
        ("c", 1, 0),
        ("b", 1, 1),
        ("long", 50, 0),
    ]
    assert rows[2]["cost_usd"] == "0.0375"
    assert rows[2]["models"] == ["claude-opus-5-5"]
    assert second["next_page"] is None


def test_a_session_has_its_requests_in_order_whatever_its_name(ask):
    ids = [
        cast.record(at=cast.NOON + timedelta(minutes=n), opening={"session_id": "s/1"}).pk
        for n in range(3)
    ]
    cast.record(opening={"session_id": "other"})

    found = ask("sessions/s/1").json()

    assert [row["id"] for row in found["data"]] == ids
    assert found["requests"] == 3
    assert ask("sessions/s").status_code == 404


def test_the_list_takes_a_fixed_number_of_queries(ask, django_assert_num_queries):
    cast.record()
    with django_assert_num_queries(3):  # the key, its instants on SQLite, the page
        ask("requests", **DAY)
    for _ in range(20):
        cast.record()
    with django_assert_num_queries(3):
        ask("requests", **DAY)


@pytest.mark.parametrize("column", ["manifest", "stream"])
def test_a_broken_transcript_is_told_and_harms_no_list(ask, column):
    broken = cast.record(reads=((1.0, b"data: x\n\n"),))
    whole = cast.record(at=cast.NOON + timedelta(minutes=1))
    Transcript.objects.filter(pk=broken.pk).update(**{column: b"no zstd"})

    words = ask(f"requests/{broken.pk}/transcript")
    sides = [ask(f"requests/{broken.pk}/raw/{side}") for side in ("request", "events")]

    for answer in (words, *sides):
        assert answer.status_code == 404
        assert "stored but broken" in answer.json()["error"]["message"]
    assert ask(f"requests/{broken.pk}").status_code == 200
    assert [row["id"] for row in ask("requests", **DAY).json()["data"]] == [whole.pk, broken.pk]
    assert ask(f"requests/{whole.pk}/transcript").status_code == 200
