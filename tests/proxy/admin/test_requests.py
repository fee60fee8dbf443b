"""The request list: keyset pages, filters, search, and that nothing can be changed."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from proxy.admin.ledger import ExchangeAdmin
from proxy.models import Exchange
from tests.proxy.admin import cast

pytestmark = pytest.mark.django_db
URL = "/admin/proxy/exchange/"


def ids_on(answer):
    return [row.pk for row in answer.context["cl"].result_list]


def seed(count, **told):
    from proxy.record.posting import post

    stories = [cast.story(at=cast.NOON + timedelta(seconds=n), **told) for n in range(count)]
    post(stories)
    return [one.opening.id for one in stories]


def test_pages_by_key_show_every_row_once_both_ways(root, monkeypatch):
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
    ci, _ = cast.key("ci")
    mine = cast.record(key=ci, opening={"session_id": "d0210c9f-1"})
    other = cast.record(opening={"session_id": "d0210c9f-2", "key_name": "else"})

    assert ids_on(root.get(URL, {"q": mine.pk})) == [mine.pk]
    assert ids_on(root.get(URL, {"q": "ci"})) == [mine.pk]
    assert ids_on(root.get(URL, {"q": "platform/ci"})) == [mine.pk]
    assert ids_on(root.get(URL, {"q": "d0210c9f-2"})) == [other.pk]
    assert set(ids_on(root.get(URL, {"q": "d0210"}))) == {mine.pk, other.pk}
    assert ids_on(root.get(URL, {"q": "%%%%"})) == []
    assert ids_on(root.get(URL, {"q": "d0"})) == []


def test_filters_keep_failures_in_sight(root):
    good = cast.record()
    bad = cast.record(closing={"outcome": "upstream_error", "status": 529, "usage": {}})
    running = cast.record(closed=False)

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
def test_every_filter_answers(root, filter_):
    seed(2)

    assert root.get(f"{URL}?{filter_}").status_code == 200


@pytest.mark.parametrize(
    "query", ["transcript__manifest=x", "preview__contains=x", "e=1&error_message__startswith=a"]
)
def test_nothing_else_can_be_filtered_by(root, query):
    answer = root.get(f"{URL}?{query}")

    assert answer.status_code in {302, 400}


def test_the_ledger_cannot_be_changed_even_by_a_superuser(root):
    exchange = cast.record()

    assert root.get(f"{URL}add/").status_code == 403
    assert root.post(f"{URL}add/", {"id": "req_x"}).status_code == 403
    assert root.post(f"{URL}{exchange.pk}/delete/", {"post": "yes"}).status_code == 403
    changed = root.post(f"{URL}{exchange.pk}/change/", {"team": "mine"})
    action = root.post(URL, {"action": "delete_selected", "_selected_action": exchange.pk})

    assert changed.status_code == 405
    assert action.status_code in {302, 200, 403}
    assert Exchange.objects.get().team == "platform"
