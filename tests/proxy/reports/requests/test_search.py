"""The search of transcripts over REST: results, permissions, filters, bounds and the audit log."""

from datetime import timedelta

import pytest

from tests.proxy.admin import factories
from tests.proxy.admin.factories import NOON, answer_body, record, request_body
from tests.proxy.admin.hostile import PAYLOADS

pytestmark = pytest.mark.django_db
PATH = "/api/v1/search/"


def send_words(text, minute=0, **fields):
    body = request_body(messages=[{"role": "user", "content": text}])
    return record(
        at=NOON + timedelta(minutes=minute),
        body=body,
        answer=answer_body({"type": "text", "text": "Done."}),
        **fields,
    )


def ids(response):
    assert response.status_code == 200, response.content
    return [row["request_id"] for row in response.json()["data"]]


def test_a_result_has_the_passage_with_its_match_and_the_request(get_report):
    row = send_words("Open src/app.py, please", opening={"session_id": "s-1", "user": "ada"})

    (result,) = get_report("search", q="SRC/app.py").json()["data"]

    assert result["passage"] == [
        {"text": "Open ", "matched": False},
        {"text": "src/app.py", "matched": True},
        {"text": ", please", "matched": False},
    ]
    assert result["request_id"] == row.pk
    assert (result["kind"], result["session_id"], result["user"]["id"]) == ("user", "s-1", "ada")


def test_pages_are_continued_by_their_cursor(get_report):
    rows = [send_words(f"word number {n}", n) for n in range(5)]

    first = get_report("search", q="word", limit=3)
    second = get_report("search", q="word", limit=3, page=first.json()["next_page"])

    assert ids(first) + ids(second) == [row.pk for row in reversed(rows)]
    assert (first.json()["has_more"], second.json()["has_more"]) == (True, False)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"team": "research"}, [1]), ({"key": "laptop"}, [2]), ({"user": "ada"}, [3]),
        ({"model": "gpt-x"}, [4]), ({"from": "2026-11-20T12:04:30Z"}, [5]),
        ({"to": "2026-11-20T12:00:30Z"}, [0]), ({"team": "research", "user": "ada"}, []),
    ],
)  # fmt: skip
def test_filters_restrict_the_requests(get_report, query, expected):
    openings = [
        {}, {"team": "research"}, {"key_id": factories.key("laptop")[0].pk}, {"user": "ada"},
        {"model_requested": "gpt-x"}, {},
    ]  # fmt: skip
    rows = [send_words(f"word {n}", n, opening=opening) for n, opening in enumerate(openings)]

    assert ids(get_report("search", q="word", **query)) == [rows[n].pk for n in expected]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({}, "required"), ({"q": ""}, "blank"), ({"q": "ab"}, "too short"),
        ({"q": "x" * 201}, "200"), ({"q": '"open'}, "not closed"), ({"q": "word", "limit": 0}, "small"),
        ({"q": "word", "limit": 101}, "large"), ({"q": "word", "page": "page_eyJ9"}, "next_page"),
        ({"q": "word", "page": "page_LTE"}, "next_page"), ({"q": "word", "from": "soon"}, "from"),
        ({"q": "word", "teams": "x"}, "did you mean"),
    ],
)  # fmt: skip
def test_bad_parameters_get_a_400_that_says_why(get_report, query, message):
    response = get_report("search", **query)

    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_a_lead_finds_only_texts_of_the_own_team_and_no_trace_of_others(client):
    send_words("sharedword foreignword", 0, team="research")
    own = send_words("sharedword", 1, team="platform")
    client.force_login(factories.ada())

    shared = client.get(PATH, {"q": "sharedword"})
    foreign = client.get(PATH, {"q": "foreignword"})
    nothing = client.get(PATH, {"q": "inexistentword"})

    assert ids(shared) == [own.pk]
    assert foreign.json() == nothing.json() == {"data": [], "has_more": False, "next_page": None}
    assert ids(client.get(PATH, {"q": "foreignword", "team": "research"})) == []


def test_a_member_finds_only_own_texts(client):
    send_words("memberword", 0, opening={"user": "ada"})
    own = send_words("memberword", 1, opening={"user": "ben"})
    client.force_login(factories.staff("ben", "view_own_exchange", "view_transcript"))

    assert ids(client.get(PATH, {"q": "memberword"})) == [own.pk]


@pytest.mark.parametrize("scopes", [["messages"], ["reports"]])
def test_a_key_that_may_not_read_transcripts_may_not_search(client, scopes):
    secret = factories.key("reader", scopes=scopes)[1]

    response = client.get(PATH, {"q": "word"}, headers={"x-api-key": secret})

    assert response.status_code == 403


def test_a_user_who_may_not_read_transcripts_may_not_search(client):
    client.force_login(factories.staff("eve", "view_exchange"))

    assert client.get(PATH, {"q": "word"}).status_code == 403


def test_each_search_is_in_the_audit_log(client, get_report):
    client.force_login(factories.ada())
    client.get(PATH, {"q": "secret word", "team": "platform"})
    client.get(PATH, {"q": "ab"})

    (entry,) = factories.audit(action="search")
    assert entry.detail == "for 'secret word' (team 'platform')"
    assert (entry.names.user, entry.names.team) == ("ada", "platform")

    get_report("search", q="other")
    by_key = factories.audit(action="search")[-1]
    assert (by_key.key, by_key.detail) == ("platform/finance", "for 'other'")


def test_switched_off_the_search_is_a_404_with_the_reason(get_report, settings):
    settings.SEARCH = False

    response = get_report("search", q="word")

    assert response.status_code == 404
    assert "BRIDGE_SEARCH" in response.json()["error"]["message"]


def test_hostile_texts_are_found_unchanged(get_report):
    for number, payload in enumerate(PAYLOADS):
        send_words(f"before {payload} hostileword{number:03d}", number)

    for number in range(0, len(PAYLOADS), 5):
        response = get_report("search", q=f"hostileword{number:03d}")
        assert len(ids(response)) == 1, PAYLOADS[number]
