"""The search page, and the search box in the header of every admin page."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from urllib.parse import urlencode

import pytest

from proxy.models import AuditEntry
from tests.proxy.admin import factories
from tests.proxy.admin.factories import NOON, answer_body, record, request_body
from tests.proxy.admin.hostile import TESTED
from tests.proxy.admin.test_hostile import outline

pytestmark = pytest.mark.django_db
PAGE = "/admin/search/texts/"
GO = "/admin/search/go/"


def send_words(text, minute=0, **fields):
    body = request_body(messages=[{"role": "user", "content": text}])
    answer = answer_body({"type": "text", "text": "Done."})
    return record(at=NOON + timedelta(minutes=minute), body=body, answer=answer, **fields)


def shown(response):
    assert response.status_code == 200
    return response.content.decode()


def without_token(page, query):
    """Return a page without its CSRF token, which changes, and without the searched text."""
    return re.sub(r'value="\w{64}"', "", page).replace(query, "")


def test_a_result_marks_the_match_and_links_to_the_request_and_session(root):
    row = send_words("Open src/app.py, please", opening={"session_id": "s 1"})

    page = shown(root.get(PAGE, {"q": "src/app"}))

    assert "Open <mark>src/app</mark>.py, please" in page
    assert f"/admin/proxy/exchange/{row.pk}/change/" in page
    assert "/admin/sessions/one/?id=s+1" in page


def test_filters_and_pages_are_links_to_the_same_search(root):
    for minute in range(25):
        send_words(f"word {minute}", minute, opening={"user": "ada"})
    send_words("word of another user", 30)

    first = shown(root.get(PAGE, {"q": "word", "user": "ada", "since": "2026-11-20"}))
    older = unescape(first.split('rel="next"')[0].rsplit('href="', 1)[1].split('"')[0])
    second = shown(root.get(PAGE + older))

    assert (first.count("<mark>"), second.count("<mark>")) == (20, 5)
    assert "another user" not in first
    assert shown(root.get(PAGE, {"q": "word", "until": "2026-11-19"})).count("<mark>") == 0


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("ab", "too short"),
        ('"open', "not closed"),
        ("x" * 300, "at most 200"),
        ("zzz", "No text matches"),
    ],
)
def test_the_page_says_why_it_has_no_results(root, query, message):
    assert message in shown(root.get(PAGE, {"q": query}))


def test_a_lead_sees_only_texts_of_the_own_team(client):
    send_words("sharedword foreignword", 0, team="research")
    send_words("sharedword", 1)
    client.force_login(factories.ada())

    assert shown(client.get(PAGE, {"q": "sharedword"})).count("<mark>") == 1
    foreign = shown(client.get(PAGE, {"q": "foreignword"}))
    nothing = shown(client.get(PAGE, {"q": "inexistword"}))
    assert without_token(foreign, "foreignword") == without_token(nothing, "inexistword")


def test_a_user_who_may_not_read_transcripts_may_not_search(client):
    client.force_login(factories.staff("eve", "view_exchange"))

    assert client.get(GO, {"q": "some words"})["Location"] == "/admin/proxy/exchange/?q=some+words"


def test_a_search_is_in_the_audit_log(root):
    root.get(PAGE, {"q": "needle", "team": "platform"})

    entry = AuditEntry.objects.get(action="search")
    assert (entry.names.user, entry.detail) == ("root", "for 'needle' (team 'platform')")


def test_switched_off_the_page_says_so(root, settings):
    settings.SEARCH = False

    assert "The search is switched off" in shown(root.get(PAGE, {"q": "word"}))


def test_hostile_texts_and_queries_stay_text(root):
    send_words("harmless needle000")
    plain = outline(root.get(PAGE, {"q": "needle000"})).seen
    for number, payload in enumerate(TESTED, 1):
        text = payload.encode(errors="replace").decode()
        send_words(f"{text} needle{number:03d}", number)

        answer = root.get(PAGE, {"q": f"needle{number:03d}"})

        assert outline(answer).seen == plain, payload
        assert "javascript" not in outline(answer).addresses
    for payload in TESTED:
        answer = root.get(f"{PAGE}?{urlencode({'q': payload.encode(errors='replace')})}")
        assert answer.status_code == 200
        assert "<script>window" not in answer.content.decode()


def test_the_box_leads_to_the_page_of_an_id_or_name_and_else_searches(client):
    lead = factories.ada()
    key = factories.key("laptop")[0]
    row = record(
        at=datetime.now(UTC),
        key=key,
        opening={"session_id": "s-1", "user": "ada", "model_requested": "claude-x"},
    )
    foreign = record(at=datetime.now(UTC), team="research", opening={"user": "cleo"})
    client.force_login(lead)

    def target(text):
        return client.get(GO, {"q": text})["Location"]

    assert target(row.pk) == f"/admin/proxy/exchange/{row.pk}/change/"
    assert target(" s-1 ") == "/admin/sessions/one/?id=s-1"
    assert target("laptop") == f"/admin/proxy/exchange/?key_id={key.pk}"
    assert target("ada") == "/admin/proxy/exchange/?user=ada"
    assert target("claude-x") == "/admin/proxy/exchange/?model_requested=claude-x"
    assert target("two words") == "/admin/search/texts/?q=two+words"
    # What others have is not recognized: it is searched like any word.
    assert target(foreign.pk) == f"/admin/search/texts/?q={foreign.pk}"
    assert target("cleo") == "/admin/search/texts/?q=cleo"


def test_every_page_has_the_box_and_its_script(root, client):
    page = shown(root.get("/admin/sessions/"))

    assert 'action="/admin/search/go/"' in page
    assert "proxy/search_box.js" in page
    client.force_login(factories.staff("nobody"))
    assert 'action="/admin/search/go/"' not in client.get("/admin/").content.decode()
