"""With BRIDGE_READING_NEEDS_REASON=1, each way to another person's transcript requires a reason.

Every URL of the project gets a request, so a new page that shows text of a transcript fails here until it
is in ``READERS``, and until it requires a reason.
"""

import json

import pytest
from django.core.management import call_command

from proxy.admin.transcript.views import DOWNLOADS, TABS
from proxy.models import AuditEntry
from proxy.models.ledger_names import person_ids
from proxy.permissions.readings import HEADER
from proxy.permissions.roles import MEMBER
from proxy.reports.requests.transcripts import SIDES
from tests.proxy.admin import factories

from .access_tables import DJANGO

pytestmark = pytest.mark.django_db

REASON = "ticket 4711: the answer was cut"
TEXTS = ("are here?", "and a map")
"""Parts of the question and of the answer of the transcript."""

DAY = "from=2026-11-20&to=2026-11-21"
READERS = {
    "admin/proxy/exchange/<path:object_id>/change/": [
        {"query": f"?tab={tab}"} for tab in TABS if tab != "record"
    ],
    "admin/proxy/exchange/<str:exchange_id>/part/": [{"query": "?path=messages.0.content.0"}],
    "admin/proxy/exchange/<str:exchange_id>/media/": [{"query": "?path=messages.0.content.1"}],
    "admin/proxy/exchange/<str:exchange_id>/body/<str:side>/": [{"side": side} for side in DOWNLOADS],
    "admin/sessions/one/": [{"query": "?id=s1&tab=words"}],
    "admin/sessions/export/": [{"query": f"?id=s1&format={one}"} for one in ("jsonl", "markdown")],
    "admin/search/texts/": [{"query": "?q=files"}],
    "api/v1/search/": [{"query": f"?q=files&{DAY}"}],
    "api/v1/requests/<str:request_id>/transcript/": [{}],
    "api/v1/requests/<str:request_id>/raw/<str:side>/": [{"side": side} for side in SIDES],
}  # fmt: skip
"""URL -> the requests that show text of the transcript."""

CASES = [(url, request) for url, requests in READERS.items() for request in requests]


@pytest.fixture(autouse=True)
def needs_reason(settings):
    settings.READING_NEEDS_REASON = True


def shows_text(response):
    page = response.content.decode(errors="replace")
    return any(text in page for text in TEXTS)


def test_no_other_url_shows_a_transcript(send):
    """Lists do not show the first words of a conversation, even to a client that gives a reason."""
    others = [url for url in DJANGO if url not in READERS and f"{url}/" not in READERS]

    found = [url for url in others if shows_text(send("root", "GET", url, **{HEADER: REASON}))]

    assert found == []
    assert len(others) > 100


@pytest.mark.parametrize(("url", "request_"), CASES)
def test_a_transcript_is_shown_only_with_a_reason(send, url, request_):
    is_api = url.startswith("api/")
    for role in ("root", "admin_key") if is_api else ("root",):
        refused = send(role, "GET", url, **request_)
        assert not shows_text(refused)
        if is_api:
            assert refused.status_code == 403
            assert HEADER in json.loads(refused.content)["error"]["message"]
        else:
            assert "/admin/reading-reason/" in refused["Location"]
    assert not AuditEntry.objects.filter(action__in=("read", "export", "search")).exists()

    assert shows_text(send("root", "GET", url, **request_, **{HEADER: REASON}))
    entries = AuditEntry.objects.filter(action__in=("read", "export", "search"))
    assert {entry.reason for entry in entries} == {REASON}
    assert entries.filter(subject__in=person_ids("ben")).exists()


@pytest.mark.parametrize(("url", "request_"), CASES)
def test_the_person_sees_who_read(send, one_of_each, url, request_):
    """The reader of the API is a key with all scopes that was made in the person's own name."""
    reader, caller = "root", {}
    if url.startswith("api/"):
        ben = one_of_each.users[MEMBER]
        secret = factories.key("spy", user=ben, scopes=["admin", "transcripts:read", "reports"])[1]
        reader, caller = "platform/spy", {"x-api-key": secret}
        refused = send("anonymous", "GET", url, **request_, **caller)
        assert (refused.status_code, shows_text(refused)) == (403, False)
    role = "anonymous" if caller else "root"

    assert shows_text(send(role, "GET", url, **request_, **caller, **{HEADER: REASON}))

    page = send(MEMBER, "GET", "admin/my-readings/").content.decode()
    assert reader in page
    assert REASON in page


@pytest.mark.parametrize(
    "command",
    [["replay", "{id}", "--raw"], ["searchtranscripts", "files"], ["exportledger"]],
    ids=lambda command: command[0],
)
def test_the_person_sees_what_commands_read(send, one_of_each, command, capsys):
    exchange = one_of_each.objects["proxy/exchange"]

    call_command(*(part.format(id=exchange.pk) for part in command), "--reason", REASON)

    page = send(MEMBER, "GET", "admin/my-readings/").content.decode()
    assert command[0] in page
    assert REASON in page
