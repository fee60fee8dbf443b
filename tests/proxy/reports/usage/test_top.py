"""The report "top": the groups with the highest values, and all others in one row."""

import pytest

from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db
DAY = {"from": "2026-11-20", "to": "2026-11-21"}


def answer_with_calls(*names):
    return factories.answer_body(
        *(
            {"type": "tool_use", "id": f"t{n}", "name": name, "input": {}}
            for n, name in enumerate(names)
        )
    )


def test_top_by_tool_ranks_tools_by_requests(get_report):
    factories.price()
    for names in (("Read",), ("Read", "Bash"), ("Edit", "Edit"), ()):
        closing = {"tool_calls": len(names), "tool_names": sorted(set(names))}
        factories.record(answer=answer_with_calls(*names), closing=closing)

    report = get_report("top", by="tool", metric="requests", limit=1, **DAY).json()
    (edit,) = (
        row for row in get_report("top", by="tool", **DAY).json()["data"] if row["value"] == "Edit"
    )

    first, other = report["data"]
    assert (first["value"], first["requests"], first["share"]) == ("Read", 2, 0.5)
    assert (other["is_other"], other["requests"]) == (True, 2)
    assert (edit["tool_calls"], edit["cost_usd"], edit["cost_estimated_usd"]) == (
        2,
        "0.00075",
        None,
    )


@pytest.mark.parametrize("model", [None, "claude-opus-4-1"])
def test_top_by_tool_is_the_same_from_days_and_from_requests(get_report, model):
    factories.price()
    for names in (("Read",), ("Read", "Bash"), ()):
        closing = {"tool_calls": len(names), "tool_names": sorted(names)}
        body = factories.request_body(model="claude-opus-4-1")
        factories.record(body=body, answer=answer_with_calls(*names), closing=closing)
    query = {"by": "tool", "from": "2026-11-20"} | ({"model": model} if model else {})

    whole, part = (
        get_report("top", **query, to=to).json()["data"]
        for to in ("2026-11-21", "2026-11-20T18:00:00Z")
    )

    assert [(row["value"], row["requests"]) for row in whole] == [("Read", 2), ("Bash", 1)]
    assert whole == part


def test_top_by_tool_is_limited_to_31_days_and_visible_rows(get_report, client):
    factories.record(
        answer=answer_with_calls("Read"), closing={"tool_calls": 1, "tool_names": ["Read"]}
    )
    secret = factories.key("research-bot", of="research", scopes=["reports"])[1]
    query = {"by": "tool", **DAY}

    foreign = client.get("/api/v1/top/", query, headers={"x-api-key": secret}).json()
    longer = get_report("top", **query | {"from": "2026-10-01"})

    assert foreign["data"] == []
    assert longer.status_code == 400
    assert longer.json()["error"]["message"] == "by: tool is for 31 days at most"


@pytest.mark.parametrize("to", ["2026-11-21", "2026-11-20T18:00:00Z"], ids=["a day", "a part"])
@pytest.mark.parametrize("model", [None, "claude-opus-4-1"])
def test_top_by_session_ranks_sessions_by_cost(get_report, to, model):
    factories.price()
    for session, count in (("s-1", 2), ("s-2", 1), ("", 1)):
        for _ in range(count):
            factories.record(
                opening={"session_id": session},
                body=factories.request_body(model="claude-opus-4-1"),
            )
    query = {"by": "session", "from": "2026-11-20", "to": to} | ({"model": model} if model else {})

    rows = get_report("top", **query).json()["data"]

    assert [(row["value"], row["requests"], row["share"]) for row in rows] == [
        ("s-1", 2, 0.5), ("", 1, 0.25), ("s-2", 1, 0.25),
    ]  # fmt: skip
    assert rows[0]["cost_usd"] == "0.0015"


@pytest.mark.parametrize("since", ["2026-11-20", "2026-11-19T18:00:00Z"], ids=["days", "parts"])
@pytest.mark.parametrize(
    ("metric", "highest"), [("cost_usd", "s-1"), ("requests", "s-1"), ("tool_calls", "s-2")]
)
def test_top_by_session_reads_the_highest_and_sums_the_others(get_report, since, metric, highest):
    factories.price()
    for session, count in (("s-1", 3), ("s-2", 2), ("s-3", 1)):
        answer = answer_with_calls(*["Read"] * (5 if session == "s-2" else 0))
        for _ in range(count):
            factories.record(opening={"session_id": session}, answer=answer)
    query = {"by": "session", "from": since, "to": "2026-11-21", "metric": metric, "limit": 1}

    first, other = get_report("top", **query).json()["data"]

    assert (first["value"], first["is_other"], other["is_other"]) == (highest, False, True)
    assert first["requests"] + other["requests"] == 6
    assert first["tool_calls"] + other["tool_calls"] == 10
    assert round(first["share"] + other["share"], 5) == 1


def test_top_by_session_is_limited_to_31_days(get_report):
    answer = get_report("top", by="session", **{"from": "2026-10-01", "to": "2026-11-21"})

    assert answer.json()["error"]["message"] == "by: session is for 31 days at most"


def test_top_sums_the_other_groups_in_one_row_and_shares_add_up(get_report):
    for team, count in (("a", 3), ("b", 2), ("c", 1), ("d", 1)):
        for _ in range(count):
            factories.record(team=team)

    rows = get_report("top", by="team", metric="requests", limit=2, **DAY).json()["data"]

    assert [(row["value"], row["requests"], row["is_other"]) for row in rows] == [
        ("a", 3, False),
        ("b", 2, False),
        (None, 2, True),
    ]
    assert sum(row["share"] for row in rows) == pytest.approx(1, abs=1e-5)
