"""The form "Why do you read this?", how long a reason is remembered, and where it is shown."""

import csv
import io
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.core.management import CommandError, call_command
from django.utils.html import escape
from django.utils.timezone import now

from proxy.models import AuditEntry
from proxy.models.ledger_names import person_ids
from proxy.permissions import readings
from proxy.permissions.readings import HEADER, MAX_REMEMBERED
from proxy.permissions.roles import AUDITOR, MEMBER
from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories
from tests.proxy.admin.hostile import PAYLOADS

pytestmark = pytest.mark.django_db

REASON = "ticket 4711: the answer was cut"
WORDS = "Which files are here?"


@pytest.fixture(autouse=True)
def needs_reason(settings):
    settings.READING_NEEDS_REASON = True


@pytest.fixture
def client():
    return ServedClient()


@pytest.fixture
def auditor(client):
    client.force_login(factories.staff("aida", groups=(AUDITOR,)))
    return client


def record(user="ben", **fields):
    opening = {"user": user, **fields}
    return factories.record(at=now() - timedelta(minutes=5), opening=opening)


def page_of(exchange, tab="conversation"):
    return f"/admin/proxy/exchange/{exchange.pk}/change/?tab={tab}"


def give_reason(client, url, reason=REASON):
    """Open the URL, send the form to which it redirects, and return the page that follows."""
    form = client.get(url)["Location"]
    assert "Why do you read this?" in client.get(form).content.decode()
    answer = client.post(form, {"reason": reason})
    if answer.status_code == 200:  # the form with an error
        return answer
    assert answer["Location"] == url
    return client.get(url)


def needs_form(client, url):
    """Return whether the URL leads to the form."""
    response = client.get(url)
    return response.status_code == 302 and "/reading-reason/" in response["Location"]


def shift_reasons(client, earlier):
    """Change the session as if each reason had been given earlier by this time."""
    session = client.session
    session[readings.REASONS] = [
        [*read, end - earlier.total_seconds()] for *read, end in session[readings.REASONS]
    ]
    session.save()


def test_the_form_leads_back_to_the_page_and_the_reason_is_in_the_log(auditor):
    exchange = record()

    shown = give_reason(auditor, page_of(exchange, "request"))

    assert WORDS in shown.content.decode()
    (entry,) = factories.audit(action="read")
    assert (entry.names.user, entry.names.subject, entry.reason) == ("aida", "ben", REASON)


def test_a_reason_is_for_one_request_and_for_half_an_hour(auditor):
    exchange, other = record(), record()
    give_reason(auditor, page_of(exchange))

    assert not needs_form(auditor, page_of(exchange, "request"))
    assert needs_form(auditor, page_of(other))
    shift_reasons(auditor, timedelta(minutes=29))
    assert not needs_form(auditor, page_of(exchange))
    shift_reasons(auditor, timedelta(minutes=1))
    assert needs_form(auditor, page_of(exchange))


def test_a_reason_for_a_session_covers_its_requests_and_not_those_without_a_session(auditor):
    first, second, alone = record(session_id="s1"), record(session_id="s1"), record()
    give_reason(auditor, "/admin/sessions/one/?id=s1&tab=words")

    assert not needs_form(auditor, page_of(first))
    assert not needs_form(auditor, page_of(second))
    assert needs_form(auditor, page_of(alone))
    auditor.post("/admin/reading-reason/?kind=session&id=", {"reason": REASON})
    assert needs_form(auditor, page_of(alone))


def test_a_reason_is_not_shared_between_users_and_ends_with_the_sign_in(auditor):
    exchange = record()
    give_reason(auditor, page_of(exchange))

    auditor.logout()
    auditor.force_login(factories.staff("otto", groups=(AUDITOR,)))

    assert needs_form(auditor, page_of(exchange))


def test_only_the_newest_reasons_are_remembered(auditor):
    exchanges = [f"req_{number}" for number in range(MAX_REMEMBERED + 1)]
    for number in exchanges:
        auditor.post(f"/admin/reading-reason/?kind=request&id={number}", {"reason": REASON})

    remembered = [ident for _, ident, *_ in auditor.session[readings.REASONS]]

    assert remembered == exchanges[1:]


@pytest.mark.parametrize(
    "reason", ["", "no", "    x    ", "\u200b" * 20, "a" * 501], ids=repr
)  # fmt: skip
def test_a_short_invisible_or_long_reason_is_rejected(auditor, reason):
    exchange = record()

    page = give_reason(auditor, page_of(exchange), reason)

    assert 'role="alert"' in page.content.decode()
    assert needs_form(auditor, page_of(exchange))
    _, key = factories.key("finance", scopes=["admin"])
    headers = {"x-api-key": key, HEADER: reason.encode().decode("latin-1")}
    answer = auditor.get(f"/api/v1/requests/{exchange.pk}/transcript/", headers=headers)
    assert answer.status_code == 403
    assert "5 to 500 characters" in answer.json()["error"]["message"]


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example", "/admin/../x", ""])
def test_the_form_leads_only_to_pages_of_the_admin(auditor, target):
    url = f"/admin/reading-reason/?kind=request&id=r&next={target}"

    answer = auditor.post(url, {"reason": REASON})

    assert answer["Location"] == ("/admin/../x" if target == "/admin/../x" else "/admin/")


def test_the_form_needs_a_known_object(client):
    client.force_login(factories.superuser())
    for query in ("kind=ledger", "kind=team&id=r", f"kind=request&id={'r' * 201}"):
        assert client.get(f"/admin/reading-reason/?{query}").status_code == 404


def test_own_transcripts_need_no_reason(client):
    ben = factories.staff("ben", groups=(MEMBER,))
    own, secret = factories.key("ben", user=ben, scopes=["transcripts:read"])
    exchange = factories.record(at=now(), key=own, opening={"user": "ben", "session_id": "s1"})
    client.force_login(ben)

    pages = [
        page_of(exchange),
        "/admin/sessions/one/?id=s1&tab=words",
        "/admin/search/texts/?q=files",
        "/admin/",
    ]

    assert [needs_form(client, page) for page in pages] == [False] * 4
    assert WORDS in client.get("/admin/proxy/exchange/").content.decode()
    client.logout()
    path = f"/api/v1/requests/{exchange.pk}/transcript/"
    assert client.get(path, headers={"x-api-key": secret}).status_code == 200
    # others may have made the key in ben's name, so it does not read what another key of ben sent
    for row in (record(user="ben"), record(user="cleo")):
        path = f"/api/v1/requests/{row.pk}/transcript/"
        assert client.get(path, headers={"x-api-key": secret}).status_code == 403


def test_a_search_asks_again_for_other_words_and_tells_the_people_whom_it_found(auditor):
    record()
    give_reason(auditor, "/admin/search/texts/?q=files")

    assert not needs_form(auditor, "/admin/search/texts/?q=files&team=platform")
    assert needs_form(auditor, "/admin/search/texts/?q=here")
    found = AuditEntry.objects.filter(action="read", subject__in=person_ids("ben")).first()
    assert (found.reason, found.detail) == (REASON, "passages found by the search for 'files'")


def test_lists_hide_the_first_words_of_other_people(auditor, settings):
    record(session_id="s1")
    lists = ("/admin/proxy/exchange/", "/admin/sessions/", "/admin/sessions/one/?id=s1", "/admin/")

    hidden = [WORDS in auditor.get(url).content.decode() for url in lists]
    settings.READING_NEEDS_REASON = False
    shown = [WORDS in auditor.get(url).content.decode() for url in lists]

    assert hidden == [False] * 4
    assert shown == [True] * 4


def test_a_person_sees_who_read_when_and_why_as_text(auditor):
    exchange = record()
    reason = " ".join(PAYLOADS)[:500]
    give_reason(auditor, page_of(exchange), reason)
    auditor.force_login(factories.staff("ben", groups=(MEMBER,)))

    assert 'href="/admin/my-readings/"' in auditor.get("/admin/me/").content.decode()
    page = auditor.get("/admin/my-readings/").content.decode()

    assert "aida" in page
    assert exchange.pk in page
    assert escape(reason) in page
    assert reason[:30] not in page


def test_the_audit_log_has_the_reason_on_its_page_in_the_api_and_in_exports(auditor):
    exchange = record()
    reason = "=cmd|' /C calc'!A0 \u202e why"
    give_reason(auditor, page_of(exchange), reason)
    auditor.force_login(factories.superuser())

    page = auditor.get("/admin/proxy/auditentry/?did=readings").content.decode()
    (row,) = auditor.get("/api/v1/audit/?action=read").json()["data"]
    answer = auditor.get("/admin/proxy/auditentry/export/csv/?did=readings")
    (line,) = csv.DictReader(io.StringIO(answer.content.decode()))

    assert "[U+202E] why" in page
    assert row["reason"] == reason
    assert line["reason"].startswith("'=cmd")
    assert "[U+202E]" in line["reason"]


@pytest.mark.parametrize("command", ["replay", "searchtranscripts", "exportledger"])
def test_a_command_needs_the_option(command, capsys):
    exchange = record()
    options = {"replay": [exchange.pk, "--raw"], "searchtranscripts": ["files"], "exportledger": []}

    for reason in ([], ["--reason", "no"]):
        with pytest.raises(CommandError, match="5 to 500 characters with --reason") as caught:
            call_command(command, *options[command], *reason)
        assert caught.value.returncode == 2
    assert not AuditEntry.objects.filter(command=command).exists()
    call_command(command, *options[command], "--reason", REASON)

    assert capsys.readouterr().out or command == "replay"
    entries = AuditEntry.objects.filter(command=command)
    assert {entry.reason for entry in entries} == {REASON}


def test_a_header_in_utf8_is_stored_as_text(auditor):
    exchange = record()
    header = "Rückfrage von Änne".encode().decode("latin-1")

    auditor.get(page_of(exchange), headers={HEADER: header})

    assert factories.audit(action="read")[0].reason == "Rückfrage von Änne"


def test_without_the_setting_a_reason_is_optional_and_stored(auditor, settings):
    settings.READING_NEEDS_REASON = False
    exchange = record()

    assert not needs_form(auditor, page_of(exchange))
    auditor.get(page_of(exchange), headers={HEADER: REASON})

    assert [entry.reason for entry in factories.audit(action="read")] == ["", REASON]


def test_the_redirect_names_the_request_and_the_page(auditor):
    exchange = record()

    query = parse_qs(urlsplit(auditor.get(page_of(exchange))["Location"]).query)

    assert query == {"kind": ["request"], "id": [exchange.pk], "next": [page_of(exchange)]}
