"""Names and texts with invisible characters, on pages, in exports, and in the terminal."""

import csv
import io
import json
import re
import tomllib

import pytest
from django.core.management import call_command

from proxy.ledger.transcripts.visible_text import INVISIBLE, SLICE_CHARS, show_invisible
from tests.proxy.admin import factories
from tests.proxy.admin.test_hostile import pages_of, running_beside

pytestmark = pytest.mark.django_db

NAME = "inv\u202eoice\u200b"
SHOWN = "inv[U+202E]oice[U+200B]"
HIDDEN = ("\u202e", "\u200b")


@pytest.fixture
def exchange():
    names = ("user", "key_name", "client_name", "model_requested", "agent_id", "session_id")
    text = {"type": "text", "text": f"`{NAME}` and {NAME}"}
    return factories.record(
        body=factories.request_body(messages=[{"role": "user", "content": NAME}], system=NAME),
        answer=factories.answer_body(text),
        opening=dict.fromkeys(names, NAME),
        closing={"model_upstream": NAME, "error_message": NAME},
    )


FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"


@pytest.mark.parametrize("text", ["\u202e\u200b", FAMILY, "a\u200d", "\u200d\u200c", "\n\t x"])
def test_a_long_text_is_shown_as_its_parts_are(text):
    count = 2 * SLICE_CHARS // len(text) + 1
    expected = show_invisible(text) * count
    assert show_invisible(text) == INVISIBLE.sub(
        lambda found: "".join(f"[U+{ord(char):04X}]" for char in found[0]), text
    )

    for before in range(len(text)):  # so that each character is the last one of a slice
        assert show_invisible("-" * before + text * count) == "-" * before + expected


def test_each_page_shows_invisible_characters(root, exchange):
    factories.team(NAME)

    for url in [
        *pages_of(exchange, exchange),
        "/admin/",
        "/admin/?range=30d",
        "/admin/proxy/team/",
    ]:
        with running_beside(NAME):
            text = re.sub('value="[^"]*"', "", root.get(url).content.decode())
        assert not [c for c in HIDDEN if c in text], url
        if "tab=" not in url or "conversation" in url:
            assert SHOWN in text or url == "/admin/", url


def test_a_form_keeps_the_characters_of_its_values(root):
    team = factories.team(NAME)

    text = root.get(f"/admin/proxy/team/{team.pk}/change/").content.decode()
    search = root.get("/admin/proxy/exchange/", {"q": NAME}).content.decode()

    assert f'value="{NAME}"' in text
    assert f'value="{NAME}"' in search
    assert SHOWN in text
    assert SHOWN in search


def test_a_block_as_text_and_the_live_rows_show_them(root, exchange):
    part = root.get(f"/admin/proxy/exchange/{exchange.pk}/part/?path=system")
    with running_beside(NAME):
        live = json.loads(root.get("/admin/live/rows/").content)

    assert part.content.decode() == SHOWN
    assert live["rows"][0]["model"] == SHOWN


def test_csv_shows_them_and_ndjson_escapes_them(root, exchange):
    page = root.get("/admin/proxy/exchange/export.csv")
    rows = list(csv.DictReader(io.StringIO(b"".join(page.streaming_content).decode())))
    exported = {}
    for kind in ("csv", "ndjson"):
        out = io.StringIO()
        call_command("exportledger", "--format", kind, stdout=out)
        exported[kind] = out.getvalue()

    assert rows[0]["model_requested"] == SHOWN
    assert SHOWN in exported["csv"]
    assert not [c for c in HIDDEN for text in exported.values() if c in text]
    assert json.loads(exported["ndjson"])["user"]["id"] != SHOWN
    assert json.loads(exported["ndjson"])["model_requested"] == NAME


def test_the_markdown_of_a_session_shows_them(root, exchange):
    export = root.get("/admin/sessions/export/", {"id": NAME, "format": "markdown"})

    text = export.content.decode()
    assert SHOWN in text
    assert not [c for c in HIDDEN if c in text]


def test_a_command_shows_them_in_the_terminal():
    factories.team(NAME)
    out = io.StringIO()

    call_command("exportconfig", stdout=out)

    assert not [c for c in HIDDEN if c in out.getvalue()]
    assert tomllib.loads(out.getvalue())["teams"][0]["name"] == NAME
