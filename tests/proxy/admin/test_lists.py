"""Filters by value, saved views, and the CSV of a filter."""

import csv
import io
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import OperationalError, connection, connections
from django.test.client import AsyncClient

from proxy.admin import patience
from proxy.models import SavedView, Upstream
from proxy.record.posting import post
from proxy.roles import MEMBER
from tests.proxy.admin import cast

pytestmark = pytest.mark.django_db
URL = "/admin/proxy/exchange/"


def ids_on(answer):
    return {row.pk for row in answer.context["cl"].result_list}


def test_each_filter_finds_its_rows(root):
    cast.price()
    ci, _ = cast.key("ci")
    dear = cast.record(key=ci, closing={"usage": {"input": 10**6, "output": 0}, "total_ms": 90_000})
    noted = cast.record(
        opening={"user": "ben"},
        closing={"notes": [{"path": "top_k", "fate": "dropped", "reason": "none"}], "total_ms": 50},
    )
    failed = cast.record(
        body=cast.request_body(model="other"),
        closing={"outcome": "upstream_error", "status": 503, "usage": {}, "stop_reason": ""},
    )
    unpriced = cast.record(closing={"model_upstream": "qwen3", "stop_reason": "new_reason"})

    for query, found in {
        "cost_from=1": {dear},
        "cost_from=0,5": {dear},
        "took_from=60": {dear},
        f"key_id={ci.pk}": {dear},
        "note=dropped": {noted},
        "note=renamed": set(),
        "user=ben": {noted},
        "status=5xx": {failed},
        "status=503": {failed},
        "stopped=none": {failed},
        "model_requested=other": {failed},
        "cost=none": {unpriced},
        "stopped=new_reason": {unpriced},
        "since=2026-11-20T12:00&until=2026-11-20T12:01": {dear, noted, failed, unpriced},
        "until=2026-11-20T12:00": set(),
        "result=closed&status=200&cost=known&stopped=end_turn&took_from=1": {dear},
    }.items():
        assert ids_on(root.get(f"{URL}?{query}")) == {row.pk for row in found}, query


def test_filters_that_are_on_can_be_taken_away_one_by_one(root):
    cast.record()
    page = root.get(f"{URL}?result=failed&of_team=platform&q=x&older_than=req_1")
    chips = {chip["label"]: chip["url"] for chip in page.context["chips"]}

    assert set(chips) == {"outcome", "team", "search"}
    assert chips["team"] in {"?result=failed&q=x", "?q=x&result=failed"}
    assert "No request fits these filters" in page.content.decode()


def test_an_unknown_value_filters_all_the_same(root):
    cast.record()

    assert ids_on(root.get(f"{URL}?result=nonsense")) == set()
    assert ids_on(root.get(f"{URL}?key_id=nobody")) == set()
    assert ids_on(root.get(f"{URL}?of_team=none")) == set()


def test_a_view_is_saved_opened_and_deleted(root):
    kept = cast.record(closing={"outcome": "upstream_error", "status": 529, "usage": {}})
    cast.record()
    query = "result=failed&older_than=req_0&status="
    saved = root.post(f"{URL}views/", {"name": "Bad <b>days</b>", "query": query}, follow=True)

    [view] = saved.context["saved"]
    assert (view.name, view.url, view.current) == ("Bad <b>days</b>", "?result=failed", True)
    assert "<b>days" not in saved.content.decode()
    assert ids_on(root.get(URL + view.url)) == {kept.pk}
    assert root.get(f"{URL}views/{view.pk}/delete/").status_code == 405
    root.post(f"{URL}views/{view.pk}/delete/")
    assert not SavedView.objects.exists()


def test_views_belong_to_one_user(root, client):
    root.post(f"{URL}views/", {"name": "mine", "query": "result=failed"})
    view = SavedView.objects.get()
    client.force_login(cast.staff("ben", groups=(MEMBER,)))

    assert client.get(URL).context["saved"] == []
    assert client.post(f"{URL}views/{view.pk}/delete/").status_code == 404
    assert SavedView.objects.exists()


@pytest.mark.parametrize("name", ["", " ", "x" * 61])
def test_a_view_needs_a_name(root, name):
    answer = root.post(f"{URL}views/", {"name": name, "query": ""}, follow=True)

    assert not SavedView.objects.exists()
    assert "needs a name" in answer.content.decode()


def test_the_name_saved_again_gets_the_new_filter(root):
    for query in ("result=failed", "result=running"):
        root.post(f"{URL}views/", {"name": "mine", "query": query})

    assert SavedView.objects.get().query == "result=running"


def test_views_lead_nowhere_else(root):
    answer = root.post(f"{URL}views/", {"name": "x", "query": "//evil.example/?a=1"})

    assert answer["Location"].startswith(f"{URL}?")


def test_csv_holds_every_row_of_the_filter_and_no_formula(root):
    evil = "=HYPERLINK(1)"
    for n in range(60):
        cast.record(body=cast.request_body(model=evil), opening={"session_id": f"s{n}"})
    cast.record(team="research")
    answer = root.get(f"{URL}export.csv?of_team=platform")
    rows = list(csv.DictReader(io.StringIO(answer.getvalue().decode())))

    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert "attachment" in answer["Content-Disposition"]
    assert len(rows) == 60
    assert {row["team.name"] for row in rows} == {"platform"}
    assert {row["model_requested"] for row in rows} == {f"'{evil}"}
    assert {row["cost_usd"] for row in rows} == {""}


def test_an_empty_csv_has_its_head(root):
    assert root.get(f"{URL}export.csv").getvalue().decode().startswith("id,state,outcome,")


def test_csv_holds_what_its_reader_may_see(client):
    ben = cast.staff("ben", groups=(MEMBER,))
    cast.record(opening={"user": "ben"})
    cast.record(opening={"user": "cleo"})
    client.force_login(ben)
    rows = list(csv.DictReader(io.StringIO(client.get(f"{URL}export.csv").getvalue().decode())))

    assert [row["user.id"] for row in rows] == ["user_ben"]


@pytest.mark.django_db(transaction=True)
async def test_csv_is_streamed_under_asgi():
    from asgiref.sync import sync_to_async

    browser = AsyncClient()
    await browser.aforce_login(await sync_to_async(cast.superuser)())
    await sync_to_async(cast.record)()
    answer = await browser.get(f"{URL}export.csv")
    lines = b"".join([chunk async for chunk in answer.streaming_content]).decode().splitlines()

    await sync_to_async(connections.close_all)()  # that thread's

    assert answer.streaming
    assert len(lines) == 2


def test_what_takes_too_long_is_stopped_and_said(root, monkeypatch):
    """Time runs at a thousandfold for the database's clock alone."""
    seed = [cast.story(at=cast.NOON + timedelta(seconds=n)) for n in range(300)]
    post(seed)
    monkeypatch.setattr(patience, "STEPS", 10)
    monkeypatch.setattr(
        patience, "time", SimpleNamespace(monotonic=iter(range(0, 10**9, 3)).__next__)
    )
    slow = root.get(f"{URL}?user=nobody")
    monkeypatch.undo()

    if connection.vendor == "sqlite":
        assert slow.context["cl"].too_slow
        assert "This takes too long to find" in slow.content.decode()
        assert "within=24h" in slow.content.decode()
    assert len(ids_on(root.get(URL))) == 50  # the connection is as it was


def test_other_errors_of_the_database_are_not_called_slow():
    with pytest.raises(OperationalError), patience.patient():
        raise OperationalError("disk I/O error")
    with pytest.raises(patience.TooSlow), patience.patient():
        raise OperationalError("canceling statement due to statement timeout")


def test_filters_offer_no_names_that_the_reader_may_not_see(client):
    ben = cast.staff("ben", groups=(MEMBER,))
    cast.key("ben", user=ben)
    cast.key("their-key", of="secret-team")
    Upstream.objects.create(name="secret-vllm", dialect="chat", base_url="http://v/v1")
    client.force_login(ben)
    for url in (URL, "/admin/proxy/apikey/", "/admin/", "/admin/proxy/budget/"):
        page = client.get(url).content.decode()
        assert "secret-team" not in page, url
        assert "their-key" not in page, url
        assert "secret-vllm" not in page, url
    client.force_login(cast.superuser())

    page = client.get(URL).content.decode()
    assert "secret-team" in page
    assert "secret-vllm" in page
