"""Reports whose sums are in rollups stay the same; what reads requests names the archived months."""

import io
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.utils.timezone import now

from proxy.models import Exchange, Scope
from tests.proxy.admin import factories
from tests.proxy.reports.conftest import client, get_report, unthrottled  # noqa: F401 -- fixtures

from .conftest import JUNE

pytestmark = pytest.mark.django_db
RANGE = {"from": "2026-06-01", "to": "2026-08-01"}
DAYS = {"from": "2026-06-28", "to": "2026-07-03"}
LATER = RANGE | {"from": "2026-07-01"}
ARCHIVED = "bridge-archived-months"
SUMS = [
    ("usage", RANGE | {"bucket": "1d", "group_by": "model"}),
    ("usage", RANGE | {"bucket": "1h", "group_by": ["team", "key"]}),
    ("summary", RANGE),
    ("timeseries", RANGE | {"bucket": "1d", "by": "model"}),
    ("top", DAYS | {"by": "tool", "metric": "requests"}),
    ("top", DAYS | {"by": "session", "metric": "requests"}),
    ("stop_reasons", RANGE | {"group_by": "model"}),
    ("errors", RANGE),
    ("latency", RANGE | {"by": "model"}),
]
ROWS = [
    ("requests", {}),
    ("requests", {"format": "csv"}),
    ("requests", {"format": "ndjson", "session_id": "session-0"}),
    ("sessions", {}),
    ("sessions", {"sort": "-requests", "to": "2026-06-30"}),
]


@pytest.fixture
def removed(ledger, archive):
    """Archive June and delete it from the database."""
    ids = [row.pk for row in ledger]
    archive("--before", "2026-07", "--remove")
    return ids


def figures(answer):
    return {name: value for name, value in answer.json().items() if name != "data_refreshed_at"}


def test_sums_stay_the_same(ledger, archive, get_report):  # noqa: F811
    before = [figures(get_report(report, **query)) for report, query in SUMS]

    archive("--before", "2026-07", "--remove")

    assert Exchange.objects.count() == 5
    assert [figures(get_report(report, **query)) for report, query in SUMS] == before
    assert all("error" not in answer for answer in before)


def test_lists_and_exports_name_the_archived_months(removed, get_report):  # noqa: F811
    for report, query in ROWS:
        answer = get_report(report, **RANGE | query)
        assert (answer.status_code, answer[ARCHIVED]) == (200, "2026-06"), (report, query)
        assert ARCHIVED not in get_report(report, **LATER).headers
    ids = [row["id"] for row in get_report("requests", **RANGE).json()["data"]]
    assert ids == removed[:4:-1]
    minutes = {"from": "2026-06-30", "to": "2026-07-01", "bucket": "1m"}
    assert get_report("timeseries", **minutes)[ARCHIVED] == "2026-06"
    assert ARCHIVED not in get_report("audit", **RANGE).headers


def test_restoring_ends_the_notice(removed, get_report):  # noqa: F811
    call_command("restoremonth", "2026-06", stdout=io.StringIO())

    answer = get_report("requests", **RANGE)

    assert ARCHIVED not in answer.headers
    assert len(answer.json()["data"]) == 10


def test_the_admin_api_names_them_too(removed, client):  # noqa: F811
    headers = {"x-api-key": factories.key("finance", scopes=["admin"])[1]}
    query = {
        "starting_at": "2026-06-28T00:00:00Z",
        "ending_at": "2026-07-05T00:00:00Z",
        "group_by[]": "session",
    }

    answer = client.get("/v1/organizations/usage_report/messages", query, headers=headers)

    assert answer[ARCHIVED] == "2026-06"


def test_one_request_and_one_session_say_where_they_are(removed, get_report):  # noqa: F811
    for path in (f"requests/{removed[0]}", f"requests/{removed[0]}/transcript"):
        answer = get_report(path)
        assert answer.status_code == 404
        assert (
            "manage.py restoremonth 2026-06 brings them back" in answer.json()["error"]["message"]
        )
    assert "restoremonth" not in get_report(f"requests/{'req_' + '0' * 26}").content.decode()
    gone = get_report("sessions/session-0")
    assert gone.status_code == 404
    assert "restoremonth 2026-06" in gone.json()["error"]["message"]
    divided = get_report("sessions/session-1")
    assert (divided.json()["requests"], divided[ARCHIVED]) == (3, "2026-06")


@pytest.mark.parametrize("scopes", [[Scope.REPORTS], [Scope.MESSAGES]])
def test_a_key_learns_nothing_of_foreign_requests(removed, client, scopes):  # noqa: F811
    """An own, a foreign and an unknown request of the month have the same answer."""
    _, secret = factories.key("reader", "research", scopes=scopes)
    unknown = removed[0][:-3] + "zzz"

    answers = [
        client.get(f"/api/v1/requests/{pk}/", headers={"x-api-key": secret})
        for pk in (*removed[:3], unknown)
    ]

    messages = {each.json()["error"]["message"].partition("; ")[2] for each in answers}
    assert {each.status_code for each in answers} == {404}
    assert len(messages) == 1


def test_late_rows_of_a_removed_month_are_in_the_database(removed, get_report):  # noqa: F811
    late = factories.record(at=JUNE + timedelta(hours=1), with_content=False)

    ids = [row["id"] for row in get_report("requests", **RANGE).json()["data"]]

    assert len(ids) == 6
    assert ids[-1] == late.pk


def test_usage_as_of_a_day_is_refused_for_archived_months(ledger, archive, get_report):  # noqa: F811
    query = RANGE | {"as_of": f"{now():%Y-%m-%d}"}
    assert get_report("usage", **query).status_code == 200
    archive("--before", "2026-07", "--remove")

    refused = get_report("usage", **query)

    assert refused.status_code == 400
    assert "restoremonth 2026-06" in refused.content.decode()
    assert get_report("usage", **query | {"from": "2026-07-01"}).status_code == 200


def test_exportledger_names_them_on_stderr(removed, capsys):
    call_command("exportledger")

    out, err = capsys.readouterr()
    assert out.count("\n") == 5
    assert "Requests of 2026-06 are archived" in err
