"""The pages Outcomes and Comparison: figures, choices, links, and what other users see."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from proxy.admin.dashboard.outcomes import GROUPS, parse_query
from tests.proxy.admin import factories
from tests.proxy.ledger.outcomes.agent_session import AgentSession

pytestmark = pytest.mark.django_db


@pytest.fixture
def session(tmp_path) -> AgentSession:
    """A session of today with a new file, a commit and a rejected edit."""
    session = AgentSession(tmp_path / "maps", at=timezone.now())
    session.opening = {"user": "ben"}
    session.write("tiles.py", "a = 1\nb = 2\n")
    session.shell("git add -A && git commit -m 'Keep the tiles'")
    session.rejected_edit("tiles.py", "a", "b")
    return session


def get(client: Client, url: str, **query: Any) -> str:
    answer = client.get(url, query)
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.parametrize("by", ["team", "user", "session", "day", "repository", "branch", "key"])
def test_the_outcomes_are_shown_by_each_dimension(client, session, by: str) -> None:
    client.force_login(factories.superuser())

    text = get(client, "/admin/outcomes/", by=by)

    names = {
        "team": "platform", "user": "ben", "session": "session-1"[:8], "key": "ci",
        "repository": "maps", "branch": "feature/tiles", "day": f"{timezone.now():%Y-%m-%d}",
    }  # fmt: skip
    assert names[by] in text
    assert "50 % rejected" in text
    assert "1 rejected" in text
    assert f"group_by={by}" in text


def test_missing_figures_are_dashes_and_explained(client) -> None:
    client.force_login(factories.superuser())
    factories.record(at=timezone.now(), with_content=False)

    text = get(client, "/admin/outcomes/")

    assert "Outcomes of 1 of 1 requests are missing" in text
    assert '<td class="mb-right mb-strong">—</td>' in text


@pytest.mark.parametrize("url", ["/admin/outcomes/", "/admin/comparison/"])
def test_a_member_sees_own_figures_only(client, session, url: str) -> None:
    client.force_login(factories.staff("cleo", groups=("member",)))
    factories.record(at=timezone.now(), opening={"user": "zoe", "model_requested": "claude-zoe"})

    text = get(client, url, by="model", range="7d")

    assert "No requests" in text
    assert "claude-zoe" not in text


@pytest.mark.parametrize(
    ("name", "since", "until", "before"),
    [
        ("7d", (3, 9), (3, 16), (3, 2)),
        ("month", (3, 1), (3, 16), (2, 1)),
        ("last-month", (2, 1), (3, 1), (1, 1)),
        ("nonsense", (2, 14), (3, 16), (1, 15)),
    ],
)
def test_month_presets_are_compared_with_the_month_before(rf, name, since, until, before) -> None:
    query = parse_query(
        rf.get("/", {"range": name}), datetime(2026, 3, 15, 12, tzinfo=UTC), GROUPS, "outcomes"
    )

    found = [(at.month, at.day) for at in (query.since, query.until, query.before)]
    assert found == [since, until, before]


def test_the_comparison_has_a_table_and_a_chart(client) -> None:
    client.force_login(factories.superuser())
    factories.price()
    hostile = "<b>model</b>" + "x" * 60
    at = timezone.now() - timedelta(minutes=1)
    factories.record(at=at, opening={"model_requested": hostile})
    factories.record(at=at, closing={"stop_reason": "max_tokens"})

    table = get(client, "/admin/comparison/", range="24h")
    chart = get(client, "/admin/comparison/", range="24h", show="chart", figure="cut_rate")

    for text in (table, chart):
        assert "<b>model" not in text
        assert "&lt;b&gt;model" in text
    assert "100.0 %" in table
    assert "stopped=max_tokens" in table
    assert "Cut answers, by model" in chart
    assert chart.count('<rect class="mb-ink-c0"') == 2


def test_the_dashboard_has_months(client) -> None:
    client.force_login(factories.superuser())
    factories.record(at=timezone.now() - timedelta(minutes=1))

    assert "No requests in this range" not in get(client, "/admin/", range="month")
    last = get(client, "/admin/", range="last-month")
    assert 'value="last-month" checked' in last
    assert "No requests in this range" in last
