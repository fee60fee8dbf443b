"""Reports and lists have the same rows and sums before and after a month is archived."""

import io
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.utils.timezone import now

from proxy.ledger.archive.duckdb_backend.base import PAGE_ROWS
from proxy.models import ArchivedMonth, Exchange, Scope
from proxy.reports.requests.filters import RequestParameters
from tests.proxy.admin import factories
from tests.proxy.reports.conftest import client, get_report, unthrottled  # noqa: F401 -- fixtures

from .conftest import DATABASES, JUNE

pytestmark = pytest.mark.django_db(databases=DATABASES)
RANGE = {"from": "2026-06-01", "to": "2026-08-01"}
FILTERS = [
    {},
    {"outcome": "upstream_error"},
    {"error_message": "100% OF 'quoted' \\"},
    {"error_message": "100_"},
    {"retried": "true"},
    {"retried": "false"},
    {"has_notes": "true"},
    {"priced": "true"},
    {"tag": "app"},
    {"tag": "größe:3"},
    {"tag": "app:night%ly"},
    {"beta": "größe"},
    {"ip": "10.0.0.1"},
    {"min_total_ms": "1", "max_cost_usd": "1"},
    {"context_window": "0-200k"},
    {"session_id": "session-0"},
    {"finished_from": "2026-06-30", "finished_to": "2026-07-02"},
    {"q": "session-1"},
    {"input_source": "reported", "state": "closed"},
    {"sort": "created_at"},
]
PART_OF_DAYS = {"from": "2026-06-28T13:00", "to": "2026-07-02T13:00"}
REPORTS = [
    ("timeseries", {"from": "2026-06-30", "to": "2026-07-01", "bucket": "1m", "by": "key"}),
    ("top", PART_OF_DAYS | {"by": "tool", "metric": "requests"}),
    ("top", PART_OF_DAYS | {"by": "session", "metric": "requests"}),
    ("usage", RANGE | {"bucket": "1d", "group_by": "model"}),
    ("sessions", RANGE),
    ("sessions", RANGE | {"limit": "1"}),
    ("sessions", PART_OF_DAYS | {"sort": "-requests"}),
    ("sessions", PART_OF_DAYS | {"sort": "started_at"}),
    ("sessions", RANGE | {"expand": ["team", "key"]}),
    ("requests", RANGE | {"expand": ["team", "key.team", "upstream"]}),
    ("sessions/session-0", {}),
]
BY_SESSION = {
    "starting_at": "2026-06-28T00:00:00Z",
    "ending_at": "2026-07-05T00:00:00Z",
    "group_by[]": "session",
}


def removed(archive, *options):
    """Archive June and delete it from the database."""
    archive("--before", "2026-07", "--remove", *options)
    assert [month.state for month in ArchivedMonth.objects.all()] == ["removed"]
    assert Exchange.objects.count() == 5


def test_the_list_is_the_same_with_each_filter(ledger, archive, get_report):  # noqa: F811
    before = [get_report("requests", **RANGE, **query).json() for query in FILTERS]

    removed(archive)

    after = [get_report("requests", **RANGE, **query).json() for query in FILTERS]
    assert after == before
    assert len(before[0]["data"]) == 10
    assert all("data" in page for page in before)


def test_reports_are_the_same(ledger, archive, get_report):  # noqa: F811
    before = [get_report(report, **query).json() for report, query in REPORTS]

    removed(archive)

    assert [get_report(report, **query).json() for report, query in REPORTS] == before
    assert all(answer.get("data") or answer["series"] for answer in before)


def test_the_admin_api_is_the_same(ledger, archive, client):  # noqa: F811
    headers = {"x-api-key": factories.key("finance", scopes=["admin"])[1]}
    path = "/v1/organizations/usage_report/messages"
    before = client.get(path, BY_SESSION, headers=headers).json()

    removed(archive)

    assert client.get(path, BY_SESSION, headers=headers).json() == before
    assert sum(len(bucket["results"]) for bucket in before["data"]) == 8


def test_one_request_and_exports_are_the_same(ledger, archive, client, get_report):  # noqa: F811
    oldest = ledger[0].pk
    questions = [
        (f"requests/{oldest}", {}),
        ("requests", RANGE | {"format": "ndjson"}),
        ("sessions", RANGE | {"format": "csv"}),
    ]
    before = [_body(get_report(report, **query)) for report, query in questions]
    exported = _exportledger()

    removed(archive)

    assert [_body(get_report(report, **query)) for report, query in questions] == before
    assert _exportledger() == exported
    assert exported.count("\n") == before[1].count(b"\n") == 10


def _body(response):
    return b"".join(response.streaming_content) if response.streaming else response.content


def _exportledger() -> str:
    out = io.StringIO()
    call_command("exportledger", stdout=out)
    return out.getvalue()


@pytest.mark.parametrize("scopes", [[Scope.REPORTS], [Scope.MESSAGES]])
def test_a_key_sees_archived_rows_as_it_saw_them_before(
    ledger,
    archive,
    client,  # noqa: F811
    scopes,
):
    """A key with reports sees its team, a key without its own requests, of both sides."""
    key, secret = factories.key("reader", "research", scopes=scopes)
    own = factories.record(at=JUNE, key=key, team="research", with_content=False)
    team = ledger.filter(team="research") if Scope.REPORTS in scopes else ledger.filter(pk=own.pk)
    visible = {row.pk for row in team}
    foreign = ledger.filter(team=factories.team().ledger_id).first().pk
    headers = {"x-api-key": secret}
    questions = [("requests", RANGE), ("sessions", RANGE), (f"requests/{own.pk}", {})]
    before = [client.get(f"/api/v1/{path}/", q, headers=headers).json() for path, q in questions]

    archive("--before", "2026-07", "--remove")

    after = [client.get(f"/api/v1/{path}/", q, headers=headers).json() for path, q in questions]
    assert after == before
    assert {row["id"] for row in after[0]["data"]} == visible
    assert client.get(f"/api/v1/requests/{foreign}/", headers=headers).status_code == 404


def test_late_rows_of_a_removed_month_are_in_all_reports(ledger, archive, get_report):  # noqa: F811
    removed(archive)

    late = factories.record(at=JUNE + timedelta(hours=1), with_content=False)

    ids = [row["id"] for row in get_report("requests", **RANGE).json()["data"]]
    assert len(ids) == 11
    assert ids[-2] == late.pk  # between the archived rows of its time


def test_an_unreadable_archive_is_a_503_without_a_path(ledger, archive, get_report, tmp_path):  # noqa: F811
    removed(archive)
    (tmp_path / "archive" / "requests-2026-06.parquet").unlink()

    response = get_report("requests", **RANGE)

    assert response.status_code == 503
    assert str(tmp_path) not in response.content.decode()
    assert get_report("usage", **RANGE).status_code == 200
    assert get_report("requests", **{**RANGE, "from": "2026-07-01"}).status_code == 200


def test_usage_as_of_a_day_is_refused_for_archived_months(ledger, archive, get_report):  # noqa: F811
    query = RANGE | {"as_of": f"{now():%Y-%m-%d}"}
    assert get_report("usage", **query).status_code == 200
    removed(archive)

    refused = get_report("usage", **query)

    assert refused.status_code == 400
    assert "archived months" in refused.content.decode()
    assert get_report("usage", **query | {"from": "2026-07-01"}).status_code == 200


@pytest.mark.parametrize("sort", ["-created_at", "created_at"])
def test_pages_cross_from_the_ledger_to_the_archive(ledger, archive, get_report, sort):  # noqa: F811
    ids = [row.pk for row in ledger.order_by(sort.removesuffix("_at"))]
    removed(archive)

    found, page = [], ""
    while page is not None:
        answer = get_report("requests", **RANGE, sort=sort, limit=3, page=page).json()
        found += [row["id"] for row in answer["data"]]
        page = answer["next_page"]

    assert found == ids


def test_the_largest_page_is_read_by_its_keys_first():
    """A larger page of a large month needs more memory than DuckDB may use."""
    limit = RequestParameters().fields["limit"].max_value

    assert limit + 1 <= PAGE_ROWS  # a page reads one more row
