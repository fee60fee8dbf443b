"""Filters by value, saved views, and the CSV of a filter."""

import csv
import io

import pytest
from django.db import OperationalError, connection, connections
from django.test.client import AsyncClient

from proxy.ledger.database import access
from proxy.models import SavedView, Upstream
from proxy.permissions.roles import MEMBER
from tests.fakes.stopped_queries import stopped_queries

from . import factories

pytestmark = pytest.mark.django_db
URL = "/admin/proxy/exchange/"
COUNT = """
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < %s)
SELECT count(*) FROM numbers
"""


def ids_on(answer):
    return {row.pk for row in answer.context["cl"].result_list}


def test_each_filter_finds_its_rows(root):
    factories.price()
    ci, _ = factories.key("ci")
    expensive = factories.record(
        key=ci, closing={"usage": {"input": 10**6, "output": 0}, "total_ms": 90_000}
    )
    noted = factories.record(
        opening={"user": "ben"},
        closing={"notes": [{"path": "top_k", "fate": "dropped", "reason": "none"}], "total_ms": 50},
    )
    failed = factories.record(
        body=factories.request_body(model="other"),
        closing={"outcome": "upstream_error", "status": 503, "usage": {}, "stop_reason": ""},
    )
    unpriced = factories.record(closing={"model_upstream": "qwen3", "stop_reason": "new_reason"})

    for query, found in {
        "cost_from=1": {expensive},
        "cost_from=0,5": {expensive},
        "took_from=60": {expensive},
        f"key_id={ci.pk}": {expensive},
        "note=dropped": {noted},
        "note=renamed": set(),
        "user=ben": {noted},
        "status=5xx": {failed},
        "status=503": {failed},
        "stopped=none": {failed},
        "model_requested=other": {failed},
        "cost=none": {unpriced},
        "stopped=new_reason": {unpriced},
        "since=2026-11-20T12:00&until=2026-11-20T12:01": {expensive, noted, failed, unpriced},
        "until=2026-11-20T12:00": set(),
        "result=closed&status=200&cost=known&stopped=end_turn&took_from=1": {expensive},
    }.items():
        assert ids_on(root.get(f"{URL}?{query}")) == {row.pk for row in found}, query


def test_active_filters_have_a_link_to_remove_each(root):
    factories.record()
    page = root.get(f"{URL}?result=failed&of_team=platform&q=x&older_than=req_1")
    links = {filter_["label"]: filter_["url"] for filter_ in page.context["active_filters"]}

    assert set(links) == {"outcome", "team", "search"}
    assert links["team"] in {"?result=failed&q=x", "?q=x&result=failed"}
    assert "No request matches these filters" in page.content.decode()


def test_an_unknown_filter_value_finds_no_rows(root):
    factories.record()

    assert ids_on(root.get(f"{URL}?result=unknown")) == set()
    assert ids_on(root.get(f"{URL}?key_id=nobody")) == set()
    assert ids_on(root.get(f"{URL}?of_team=none")) == set()


def test_a_view_is_saved_opened_and_deleted(root):
    failed = factories.record(closing={"outcome": "upstream_error", "status": 529, "usage": {}})
    factories.record()
    query = "result=failed&older_than=req_0&status="
    saved = root.post(f"{URL}views/", {"name": "Bad <b>days</b>", "query": query}, follow=True)

    [view] = saved.context["saved"]
    assert (view["name"], view["url"], view["current"]) == (
        "Bad <b>days</b>",
        "?result=failed",
        True,
    )
    assert "<b>days" not in saved.content.decode()
    assert ids_on(root.get(URL + view["url"])) == {failed.pk}
    assert root.get(f"{URL}views/{view['pk']}/delete/").status_code == 405
    root.post(f"{URL}views/{view['pk']}/delete/")
    assert not SavedView.objects.exists()


def test_views_belong_to_one_user(root, client):
    root.post(f"{URL}views/", {"name": "mine", "query": "result=failed"})
    view = SavedView.objects.get()
    client.force_login(factories.staff("ben", groups=(MEMBER,)))

    assert client.get(URL).context["saved"] == []
    assert client.post(f"{URL}views/{view.pk}/delete/").status_code == 404
    assert SavedView.objects.exists()


@pytest.mark.parametrize("name", ["", " ", "x" * 61])
def test_a_view_needs_a_name(root, name):
    answer = root.post(f"{URL}views/", {"name": name, "query": ""}, follow=True)

    assert not SavedView.objects.exists()
    assert "needs a name" in answer.content.decode()


def test_saving_a_view_again_replaces_its_filter(root):
    for query in ("result=failed", "result=running"):
        root.post(f"{URL}views/", {"name": "mine", "query": query})

    assert SavedView.objects.get().query == "result=running"


def test_a_saved_view_redirects_only_to_the_list(root):
    answer = root.post(f"{URL}views/", {"name": "x", "query": "//evil.example/?a=1"})

    assert answer["Location"].startswith(f"{URL}?")


def test_csv_has_every_row_of_the_filter_and_no_formula(root):
    evil = "=HYPERLINK(1)"
    for n in range(60):
        factories.record(body=factories.request_body(model=evil), opening={"session_id": f"s{n}"})
    factories.record(team="research")
    answer = root.get(f"{URL}export.csv?of_team=platform")
    rows = list(csv.DictReader(io.StringIO(answer.getvalue().decode())))

    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert "attachment" in answer["Content-Disposition"]
    assert len(rows) == 60
    assert {row["team.name"] for row in rows} == {"platform"}
    assert {row["model_requested"] for row in rows} == {f"'{evil}"}
    assert {row["cost_usd"] for row in rows} == {""}


def test_an_empty_csv_has_a_header_line(root):
    assert root.get(f"{URL}export.csv").getvalue().decode().startswith("id,state,outcome,")


def test_csv_has_only_rows_that_the_user_may_see(client):
    ben = factories.staff("ben", groups=(MEMBER,))
    factories.record(opening={"user": "ben"})
    factories.record(opening={"user": "cleo"})
    client.force_login(ben)
    rows = list(csv.DictReader(io.StringIO(client.get(f"{URL}export.csv").getvalue().decode())))

    assert [row["user.id"] for row in rows] == ["ben"]


@pytest.mark.django_db(transaction=True)
async def test_csv_is_streamed_under_asgi():
    from asgiref.sync import sync_to_async

    browser = AsyncClient()
    await browser.aforce_login(await sync_to_async(factories.superuser)())
    await sync_to_async(factories.record)()
    answer = await browser.get(f"{URL}export.csv")
    lines = b"".join([chunk async for chunk in answer.streaming_content]).decode().splitlines()

    await sync_to_async(connections.close_all)()  # those of the other thread

    assert answer.streaming
    assert len(lines) == 2


def test_a_query_over_its_time_limit_is_stopped_and_the_next_one_is_not():
    def count(rows):
        with connection.cursor() as cursor:
            cursor.execute(COUNT, [rows])
            return cursor.fetchone()[0]

    with access.with_query_timeout(seconds=60):
        assert count(30_000) == 30_000
    with pytest.raises(access.QueryTimeout), access.with_query_timeout(seconds=0.02):
        count(10**9)
    assert count(30_000) == 30_000  # the connection has no time limit any more


def test_a_slow_query_is_stopped_with_a_message(root):
    factories.record()

    with stopped_queries('"proxy_exchange"."user" IN ') as stopped:
        slow = root.get(f"{URL}?user=nobody")

    assert len(stopped) == 1
    assert slow.context["cl"].timed_out
    assert "The search takes too long" in slow.content.decode()
    assert "within=24h" in slow.content.decode()
    assert len(ids_on(root.get(URL))) == 1


def test_other_database_errors_are_not_timeouts():
    with pytest.raises(OperationalError), access.with_query_timeout():
        raise OperationalError("disk I/O error")
    with pytest.raises(access.QueryTimeout), access.with_query_timeout():
        raise OperationalError("canceling statement due to statement timeout")


def test_filters_offer_only_names_that_the_user_may_see(client):
    ben = factories.staff("ben", groups=(MEMBER,))
    factories.key("ben", user=ben)
    factories.key("their-key", of="secret-team")
    Upstream.objects.create(name="secret-vllm", dialect="chat", base_url="http://v/v1")
    client.force_login(ben)
    for url in (URL, "/admin/proxy/apikey/", "/admin/", "/admin/proxy/budget/"):
        page = client.get(url).content.decode()
        assert "secret-team" not in page, url
        assert "their-key" not in page, url
        assert "secret-vllm" not in page, url
    client.force_login(factories.superuser())

    page = client.get(URL).content.decode()
    assert "secret-team" in page
    assert "secret-vllm" in page
