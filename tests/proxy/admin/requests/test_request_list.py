"""The request list: keyset pages, filters, search, and read-only access."""

import html
import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from proxy.admin.requests.exchange_admin import ExchangeAdmin
from proxy.models import Exchange
from tests.proxy.admin import factories, session_factories

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


def test_keyset_pages_show_every_row_once_in_both_directions(root):
    ids = sorted(seed(2 * ExchangeAdmin.list_per_page + 1), reverse=True)

    answer, seen = root.get(URL), []
    while True:
        seen.append(ids_on(answer))
        older = answer.context["cl"].older_url
        if not older:
            break
        answer = root.get(URL + older)
    back = root.get(URL + answer.context["cl"].newer_url)

    assert [pk for some in seen for pk in some] == ids
    assert len(seen) == 3
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
        root.get(f"{URL}?spoke=responses&took_from=1")

    sql = " ".join(query["sql"] for query in few.captured_queries)
    assert "COUNT(" not in sql
    assert "manifest" not in sql
    assert '"error_message",' not in sql.replace(
        '"error_message", 1, 11000', ""
    )  # only its beginning


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


def rows_of(page):
    """Return the cells of each row of the list as text, by the column's name."""
    table = page.content.decode().split('id="result_list"')[1].split("</table>")[0]
    names = [
        re.sub("<[^>]+>", "", name) for name in re.findall('<th scope="col"[^>]*>(.*?)</th>', table)
    ]
    rows = re.findall(r"<tr>(?!<th scope=\"col\").*?</tr>", table, re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [
        dict(zip(names, (" ".join(html.unescape(re.sub("<[^>]+>", " ", c)).split()) for c in each), strict=True))
        for each in cells
        if len(each) == len(names)
    ]  # fmt: skip


def test_each_row_shows_what_is_new_in_its_request(root):
    session_factories.session(factories.NOON)

    rows = rows_of(root.get(URL))

    new = [row["New in this request"] for row in rows]
    assert any("Bash tail -40 build/test.log · Read tiles/cache.py" in text for text in new)
    assert any("“The tests of the tile cache fail since yesterday." in text for text in new)
    assert any("Grep evict\\(" in text and "agent explore-7" in text for text in new)
    assert any(text.startswith("Thank you. Write the commit message.") for text in new)
    assert not [text for text in new if "[tool result]" in text]


def test_stop_reason_and_error_have_columns_of_their_own(root):
    session_factories.session(factories.NOON)

    rows = rows_of(root.get(URL))

    assert {row["Stop reason"].split()[0] for row in rows if row["Stop reason"]} == {
        "end_turn",
        "tool_use",
    }
    assert "tool_use Bash, Read" in {row["Stop reason"] for row in rows}
    assert {row["Error"] for row in rows} == {"", "the upstream is overloaded"}


def test_rows_can_be_grouped_by_session(root):
    for n in range(4):
        user = {"role": "user", "content": f"Question {n}"}
        factories.record(
            at=factories.NOON + timedelta(minutes=n),
            body=factories.request_body(messages=[user]),
            opening={"session_id": f"session-{n % 2}"},
        )
    factories.record(opening={"session_id": ""})

    page = root.get(f"{URL}?group=session&of_team=platform")
    text = page.content.decode()

    groups = page.context_data["groups"]
    assert [(group["title"], len(group["rows"])) for group in groups][:2] == [
        ("Question 1", 2),
        ("Question 0", 2),
    ]
    assert text.count('class="mb-group"') == 3
    assert "No session" in text
    assert 'class="mb-group"' not in root.get(URL).content.decode()
    assert "group=session" in root.get(URL).context_data["group_url"]
    assert page.context_data["group_url"] == "?of_team=platform"


def test_a_long_name_loses_its_middle_and_its_title_has_the_whole(root):
    name = "claude-" + "x" * 180 + "-2026"
    factories.record(opening={"model_requested": name})

    text = root.get(URL).content.decode()

    assert f'title="{name}"' in text
    shown = re.search(r">(claude-x+…x+-2026)</a>", text)
    assert len(shown[1]) == 20


def test_rows_without_the_transcript_permission_show_no_words(client):
    session_factories.session(factories.NOON)
    client.force_login(factories.staff("olga", "view_exchange", groups=("team:platform",)))

    text = client.get(URL).content.decode()

    assert "end_turn" in text
    assert "tile cache" not in text
    assert "build/test.log" not in text
