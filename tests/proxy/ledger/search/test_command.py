"""The command ``searchtranscripts``: its output, and the index for stored transcripts."""

import json
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command

from proxy.ledger.maintenance.search_reindex import reindex
from proxy.models import AuditEntry, SearchEntry, SearchOccurrence, Transcript
from tests.proxy.admin.factories import NOON, answer_body, record, request_body

pytestmark = pytest.mark.django_db


def send_words(*messages, minute=0, answer="Done."):
    return record(
        at=NOON + timedelta(minutes=minute),
        body=request_body(
            system="You are careful.",
            messages=[
                {"role": "user", "content": m} if isinstance(m, str) else m for m in messages
            ],
        ),
        answer=answer_body({"type": "text", "text": answer}),
    )


def run(capsys, *args):
    call_command("searchtranscripts", *args)
    return capsys.readouterr().out


def test_it_prints_the_matches_as_a_table_and_as_json(capsys):
    row = send_words("Find the needle\x1b[31m in [bold]hay[/bold]")

    table = run(capsys, "needle")
    (found,) = map(json.loads, run(capsys, "needle", "--json").splitlines())

    assert row.pk[:10] in table
    assert "\x1b[31m" not in table
    assert found["request_id"] == row.pk
    assert [part["text"] for part in found["passage"] if part["matched"]] == ["needle"]
    entry = AuditEntry.objects.filter(action="search").first()
    assert (entry.command, entry.detail) == ("searchtranscripts", "for 'needle'")


def test_it_says_that_nothing_matches_and_what_is_wrong(capsys, settings):
    assert "no text matches" in run(capsys, "inexistent")
    with pytest.raises(CommandError, match="too short"):
        run(capsys, "ab")
    with pytest.raises(CommandError, match="1 to 1000"):
        run(capsys, "word", "--limit", "0")
    settings.SEARCH = False
    with pytest.raises(CommandError, match="BRIDGE_SEARCH"):
        run(capsys, "word")


def conversation():
    """Record two requests of a conversation and a third one."""
    reply = {"role": "assistant", "content": [{"type": "text", "text": "Answer one"}]}
    send_words("Word one", answer="Answer one")
    send_words("Word one", reply, "Word two", minute=1, answer="Answer two")
    send_words("Word one", minute=2, answer="Answer three")


def index():
    return set(SearchOccurrence.objects.values_list("entry__part", "exchange_id"))


def test_the_index_built_later_equals_the_index_of_the_drainer(capsys, settings):
    conversation()
    drained = index()
    SearchOccurrence.objects.all().delete()
    SearchEntry.objects.all().delete()

    out = run(capsys, "--reindex")

    assert "3 transcripts" in out
    assert index() == drained
    assert len(run(capsys, "word two", "--json").splitlines()) == 1


def test_an_interrupted_index_is_continued(settings):
    settings.SEARCH = False
    conversation()
    settings.SEARCH = True

    for number, _ in enumerate(reindex(batch=1)):
        if number == 1:
            break
    first = index()
    list(reindex(batch=1))

    assert (
        {pk for _, pk in first}
        < {pk for _, pk in index()}
        == set(Transcript.objects.values_list("pk", flat=True))
    )
    before = index()
    list(reindex())
    assert index() == before


def test_a_history_whose_first_transcript_is_gone_is_indexed_in_the_next(capsys, settings):
    settings.SEARCH = False
    conversation()
    settings.SEARCH = True
    Transcript.objects.order_by("pk").first().delete()
    Transcript.objects.order_by("pk").last().delete()

    run(capsys, "--reindex")

    assert len(run(capsys, "word one", "--json").splitlines()) == 1
