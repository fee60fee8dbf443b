"""The request list: keyset pages, filters, search, and read-only access."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from proxy.admin.requests.exchange_admin import ExchangeAdmin
from proxy.models import Exchange
from tests.proxy.admin import factories

pytestmark = pytest.mark.django_db
URL = "/admin/proxy/exchange/"


def ids_on(answer):
    return [row.pk for row in answer.context["cl"].result_list]


def seed(count, **fields):
    from proxy.ledger.posting.ledger_writer import write_to_database

    records = [
        factories.exchange_records(at=factories.NOON + timedelta(seconds=n), **fields)
        for n in range(count)
    ]
    write_to_database(records)
    return [each.opening.id for each in records]


def test_keyset_pages_show_every_row_once_in_both_directions(root, monkeypatch):
    # A page of the real length would make this test slow and prove the same.
    monkeypatch.setattr(ExchangeAdmin, "list_per_page", 4)
    ids = sorted(seed(10), reverse=True)

    answer, seen = root.get(URL), []
    while True:
        seen.append(ids_on(answer))
        older = answer.context["cl"].older_url
        if not older:
            break
        answer = root.get(URL + older)
    back = root.get(URL + answer.context["cl"].newer_url)

    assert [pk for some in seen for pk in some] == ids
    assert ids_on(back) == seen[1]


def test_the_list_takes_a_fixed_number_of_queries_and_loads_no_bodies(
    root, django_assert_num_queries
):
    seed(3)
    root.get(URL)  # the first request also looks up the session's content types
    with CaptureQueriesContext(connection) as few:
        root.get(URL)
    seed(200)
    with django_assert_num_queries(len(few)):
        root.get(URL)
    with django_assert_num_queries(len(few)):
        root.get(f"{URL}?result=failed&took_from=1")

    sql = " ".join(query["sql"] for query in few.captured_queries)
    assert "COUNT(" not in sql
    assert "manifest" not in sql
    assert "error_message" not in sql


def test_search_finds_by_exact_id_key_and_session(root):
    ci, _ = factories.key("ci")
    mine = factories.record(key=ci, opening={"session_id": "d0210c9f-1"})
    other = factories.record(opening={"session_id": "d0210c9f-2", "key_name": "else"})

    assert ids_on(root.get(URL, {"q": mine.pk})) == [mine.pk]
    assert ids_on(root.get(URL, {"q": "ci"})) == [mine.pk]
    assert ids_on(root.get(URL, {"q": "platform/ci"})) == [mine.pk]
    assert ids_on(root.get(URL, {"q": "d0210c9f-2"})) == [other.pk]
    assert set(ids_on(root.get(URL, {"q": "d0210"}))) == {mine.pk, other.pk}
    assert ids_on(root.get(URL, {"q": "%%%%"})) == []
    assert ids_on(root.get(URL, {"q": "d0"})) == []


def test_the_result_filter_finds_failed_and_running_rows(root):
    good = factories.record()
    bad = factories.record(closing={"outcome": "upstream_error", "status": 529, "usage": {}})
    running = factories.record(closed=False)

    assert ids_on(root.get(URL, {"result": "failed"})) == [bad.pk]
    assert ids_on(root.get(URL, {"result": "running"})) == [running.pk]
    assert ids_on(root.get(URL, {"result": "completed"})) == [good.pk]
    assert set(ids_on(root.get(URL, {"of_team": "platform"}))) == {good.pk, bad.pk, running.pk}


@pytest.mark.parametrize(
    "filter_",
    [
        "within=24h",
        "stopped=end_turn",
        "via=openai",
        "spoke=chat",
        "holds=notes",
        "holds=retries",
        "holds=tools",
        "cost=none",
        "cost_from=0.01",
        "cost_from=much",
        "took_from=5",
        "status=5xx",
        "status=many",
        "note=dropped",
        "note=burnt",
        "since=2026-11-20T11:00",
        "since=yesterday",
        "until=2026-11-20",
        "model_requested=claude-opus-5-5",
        "user=ben",
        "result=nonsense",
        "session_id=x",
        "key_id=1",
    ],
)
def test_every_filter_returns_a_page(root, filter_):
    seed(2)

    assert root.get(f"{URL}?{filter_}").status_code == 200


@pytest.mark.parametrize(
    "query", ["transcript__manifest=x", "preview__contains=x", "e=1&error_message__startswith=a"]
)
def test_other_columns_cannot_be_filtered(root, query):
    answer = root.get(f"{URL}?{query}")

    assert answer.status_code in {302, 400}


def test_the_ledger_cannot_be_changed_even_by_a_superuser(root):
    exchange = factories.record()

    assert root.get(f"{URL}add/").status_code == 403
    assert root.post(f"{URL}add/", {"id": "req_x"}).status_code == 403
    assert root.post(f"{URL}{exchange.pk}/delete/", {"post": "yes"}).status_code == 403
    changed = root.post(f"{URL}{exchange.pk}/change/", {"team": "mine"})
    action = root.post(URL, {"action": "delete_selected", "_selected_action": exchange.pk})

    assert changed.status_code == 405
    assert action.status_code in {302, 200, 403}
    assert Exchange.objects.get().team == "platform"
