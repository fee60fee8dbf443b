"""The admin shows the same requests before and after their month was archived."""

import csv
import io
from pathlib import Path

import pytest

from proxy.admin.requests.exchange_admin import ExchangeAdmin
from proxy.ledger.archive import files
from proxy.models import ArchivedMonth, Exchange
from tests.proxy.admin import factories

from .conftest import DATABASES

pytestmark = pytest.mark.django_db(databases=DATABASES)
LIST = "/admin/proxy/exchange/"
FILTERS = (
    "", "result=failed", "status=5xx", "of_team=research", "holds=retries", "note=dropped",
    "since=2026-06-29T00:00&until=2026-07-01T00:00", "q=ada", "q=session-1",
)  # fmt: skip


def ids_on(page):
    return [row.pk for row in page.context["cl"].result_list]


def pages_of(client):
    """Return the ids of each page, from the newest to the oldest, and of the last but one again."""
    page, found = client.get(LIST), []
    while True:
        found.append(ids_on(page))
        if not (older := page.context["cl"].older_url):
            return [*found, ids_on(client.get(LIST + page.context["cl"].newer_url))]
        page = client.get(LIST + older)


def ids_in_csv(client, query):
    body = client.get(f"{LIST}export.csv?{query}").getvalue().decode()
    return [row["id"] for row in csv.DictReader(io.StringIO(body))]


def neighbors_of(client, pk):
    """Return the ids of the requests before and after this one in its session."""
    page = client.get(f"{LIST}{pk}/change/", {"tab": "record"}).context
    return page["previous_id"], page["next_id"]


def test_lists_exports_and_pages_of_a_request_continue_in_the_archive(
    client, ledger, archive, monkeypatch
):
    client.force_login(factories.superuser())
    lists = {query: ids_on(client.get(f"{LIST}?{query}")) for query in FILTERS}
    exported = ids_in_csv(client, "result=failed")
    # A page of the real length would make this test slow and prove the same.
    monkeypatch.setattr(ExchangeAdmin, "list_per_page", 4)
    pages = pages_of(client)
    ids = [row.pk for row in ledger]
    neighbors = [neighbors_of(client, pk) for pk in ids[4:6]]
    session = "/admin/sessions/one/?id=session-1"  # with requests on both sides
    steps = [step.row.pk for step in client.get(session).context["steps"]]

    archive("--before", "2026-07", "--remove")

    assert not Exchange.objects.filter(pk=ids[0]).exists()
    assert pages_of(client) == pages
    monkeypatch.undo()
    assert {query: ids_on(client.get(f"{LIST}?{query}")) for query in FILTERS} == lists
    assert len(lists[""]) == 10
    assert ids_in_csv(client, "result=failed") == exported
    assert [neighbors_of(client, pk) for pk in ids[4:6]] == neighbors
    assert [step.row.pk for step in client.get(session).context["steps"]] == steps
    notice = client.get("/admin/sessions/?day=2026-06-29").context["archived_url"]
    assert ids_on(client.get(notice)) == ids[1:3][::-1]


def test_a_missing_file_is_reported_and_hides_no_request_of_the_database(client, ledger, archive):
    client.force_login(factories.superuser())
    oldest = ledger[0].pk
    archive("--before", "2026-07", "--remove")
    month = ArchivedMonth.objects.get()
    Path(files.address(month.location, month.file)).unlink()

    rows = client.get(LIST)
    one = client.get(f"{LIST}{oldest}/change/")

    assert len(rows.context["cl"].result_list) == 5
    assert "Archived months cannot be read now" in rows.content.decode()
    assert one.status_code == 503
    assert "archived month" in one.content.decode()
