"""The ledger writer: each record becomes a row once, with values that the database accepts."""

import contextlib
from datetime import UTC, datetime

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from proxy.ledger.journal.journal import Journal
from proxy.ledger.journal.reader import JournalReader
from proxy.ledger.journal.records import Chunk, CloseRecord
from proxy.ledger.posting import drainer, drift, journal_posting, ledger_writer
from proxy.ledger.posting.ledger_writer import ExchangeRecords, write_to_database
from proxy.ledger.transcripts import storage
from proxy.ledger.transcripts.encoding import StreamCompressor, reads_in
from proxy.models import (
    ApiKey,
    DrainWatermark,
    Drift,
    Exchange,
    HashChainLink,
    Part,
    Price,
    Transcript,
    Upstream,
    UsageQuarterHour,
)
from tests.proxy.ledger.conftest import drain_all
from tests.proxy.ledger.factories import NOON, answer, body, closing, exchange_id, opening

pytestmark = pytest.mark.django_db


def write(journal: Journal, *records) -> None:
    for record in records:
        journal.append_and_wait(record)


def test_an_open_record_becomes_an_open_row(journal: Journal, own: JournalReader) -> None:
    write(journal, opening(1, session_id="s-1", user_agent="claude-cli/2"))

    drain_all(own)

    row = Exchange.objects.get()
    assert (row.state, row.outcome, row.finished) == ("open", "", None)
    assert (row.team, row.key_name, row.session_id) == ("platform", "ada-laptop", "s-1")
    assert row.created == datetime.fromtimestamp(NOON + 1, UTC)
    assert row.preview == "What is the capital of France?"
    assert not UsageQuarterHour.objects.exists()


SYSTEM = {"role": "system", "content": "The available agents."}
TOOL_RESULT = {
    "role": "user",
    "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}],
}


@pytest.mark.parametrize(
    ("messages", "preview"),
    [
        (["Fix it.", SYSTEM], "Fix it."),
        (["Fix it.", SYSTEM, SYSTEM], "Fix it."),
        (["Fix it.", TOOL_RESULT, SYSTEM], "[tool result]"),
        ([SYSTEM], "The available agents."),
        ([["no message"]], ""),
    ],
)
def test_the_preview_is_the_newest_user_message(
    journal: Journal, own: JournalReader, messages, preview
) -> None:
    """Claude Code sends a system message at the end of its list."""
    write(journal, opening(1, body=body(*messages)))

    drain_all(own)

    assert Exchange.objects.get().preview == preview


def test_the_close_record_completes_the_row(journal: Journal, own: JournalReader) -> None:
    write(journal, opening(1))
    drain_all(own)
    write(journal, Chunk(id=exchange_id(1), reads=[(1.0, b"data: 1\n\n")]))
    write(
        journal, closing(1, detail="", notes=[{"path": "top_k", "fate": "dropped", "reason": "x"}])
    )

    drain_all(own)

    row = Exchange.objects.get()
    assert (row.state, row.outcome, row.status) == ("closed", "completed", 200)
    assert (row.input_tokens, row.output_tokens, row.cache_read_tokens) == (320, 17, 4000)
    assert (row.reasoning_tokens, row.reasoning_source) == (None, "missing")
    assert (row.input_source, row.cache_write_source) == ("reported", "missing")
    assert row.cost_nanousd is None
    assert row.notes == [{"path": "top_k", "fate": "dropped", "reason": "x"}]
    assert HashChainLink.objects.get().exchange_id == row.pk


def test_writing_all_records_again_changes_nothing(journal: Journal, own: JournalReader) -> None:
    for number in range(30):
        write(journal, opening(number), closing(number))
    drain_all(own)
    before = [
        list(table.objects.order_by("pk").values()) for table in (Exchange, Part, HashChainLink)
    ]
    sums = list(UsageQuarterHour.objects.values("requests", "input_reported"))

    [restored] = journal_posting.post_again(journal.directory.parent)

    assert (restored.records, restored.since, restored.lacking) == (60, 0, 0)
    assert before == [
        list(t.objects.order_by("pk").values()) for t in (Exchange, Part, HashChainLink)
    ]
    assert sums == list(UsageQuarterHour.objects.values("requests", "input_reported"))
    assert sum(one["requests"] for one in sums) == 30


def test_a_crash_before_records_are_marked_as_written_duplicates_nothing(
    journal: Journal, own: JournalReader
) -> None:
    write(journal, opening(1), closing(1))
    drain_all(own)  # and the process dies before it saves the watermark

    with contextlib.closing(JournalReader(journal.directory, journal)) as next_one:
        assert drain_all(next_one) == 1

    assert Exchange.objects.count() == HashChainLink.objects.count() == 1
    assert UsageQuarterHour.objects.get().requests == 1


def test_a_real_close_record_replaces_an_assumed_interruption(
    journal: Journal, own: JournalReader
) -> None:
    ledger_writer.write_to_database(
        [ExchangeRecords(opening(1), [], closing(1, outcome="interrupted", usage={}))]
    )  # settleorphans
    write(journal, opening(1), closing(1))

    drain_all(own)

    assert Exchange.objects.get().outcome == "completed"
    assert {u.outcome: u.requests for u in UsageQuarterHour.objects.filter(requests__gt=0)} == {
        "completed": 1
    }


def test_a_metadata_only_team_has_no_stored_content(journal: Journal, own: JournalReader) -> None:
    write(
        journal,
        opening(1, body=None, message_count=3),
        closing(1, answer=None, tool_names=["Read"]),
    )

    drain_all(own)

    row = Exchange.objects.get()
    assert (row.preview, row.message_count, row.tool_names) == ("", 3, ["Read"])
    assert not Transcript.objects.exists()
    assert not Part.objects.exists()
    assert HashChainLink.objects.get().body_digest is None


INVALID = {
    "user_agent": "x\x00y" + "z" * 1000,
    "model_requested": "m" * 500,
    "tags": {"a\x00": "\ud800"},
    "ip": "not an address",
    "body": b'{"messages": [{"role": "user", "content": "\\u0000 nul"}]}',
}


def test_invalid_text_is_replaced_and_blocks_no_other_record(
    journal: Journal, own: JournalReader
) -> None:
    fields = {**INVALID, "tags": {"a\x00": "b"}}
    write(journal, opening(1, **fields), opening(2))
    write(
        journal, closing(1, error_message="\x00" * 10, attempts=[{"ms": float("inf")}]), closing(2)
    )

    drain_all(own)

    row = Exchange.objects.get(pk=exchange_id(1))
    assert len(row.user_agent) == 300
    assert len(row.model_requested) == 200
    assert row.user_agent.startswith("x\ufffdy")
    assert row.ip is None
    assert row.attempts == [{"ms": None}]
    assert Exchange.objects.filter(state="closed").count() == 2


def test_only_the_record_that_the_database_rejects_is_set_aside(
    journal: Journal, own: JournalReader
) -> None:
    write(journal, opening(1), opening(2, created=float(10**18)), opening(3))

    drain_all(own)

    assert list(Exchange.objects.order_by("pk").values_list("pk", flat=True)) == [
        exchange_id(1),
        exchange_id(3),
    ]
    assert own.backlog().set_aside == 1


def test_a_body_that_is_not_json_is_stored_unchanged(journal: Journal, own: JournalReader) -> None:
    write(journal, opening(1, body=b"\xff not json"), closing(1))

    drain_all(own)

    stored = storage.read(exchange_id(1))
    assert stored is not None
    assert stored.request == {"raw": "\ufffd not json"}


def test_a_rejected_body_is_not_linked_to_a_session(journal: Journal, own: JournalReader) -> None:
    rejected = body({"role": "user", "content": 5}, metadata={"user_id": "_session_0123456789"})
    write(
        journal, opening(1, body=rejected, faulty=True), closing(1, outcome="refused", answer=None)
    )

    drain_all(own)

    stored = storage.read(exchange_id(1))
    assert stored is not None
    assert stored.request == {"raw": rejected.decode()}
    row = Exchange.objects.get()
    assert (row.session_id, row.preview, row.message_count, row.previous_id) == ("", "", 0, "")


def test_the_price_in_force_is_used_and_stored(journal: Journal, own: JournalReader) -> None:
    openai = Upstream.objects.create(name="openai", dialect="responses", base_url="https://x.test")
    Price.objects.create(
        upstream=openai, model="gpt-5.2", since="2026-01-01", input="1.25", output="10",
        cache_read="0.125",
    )  # fmt: skip
    Price.objects.create(
        upstream=openai, model="gpt-5.2", since="2027-01-01", input="9", output="9"
    )
    write(journal, opening(1), closing(1))

    drain_all(own)

    row = Exchange.objects.get()
    assert row.cost_nanousd == 320 * 1250 + 17 * 10_000 + 4000 * 125
    assert row.price["since"] == "2026-01-01"
    assert UsageQuarterHour.objects.get().unpriced == 0


def test_the_reads_of_the_last_attempt_are_stored(journal: Journal, own: JournalReader) -> None:
    pk = exchange_id(1)
    write(
        journal,
        opening(1),
        Chunk(id=pk, reads=[(1.0, b"first upstream")], attempt=0),
        Chunk(id=pk, reads=[(5.0, b"second")], attempt=1),
        closing(1, attempt=1, reads=[(9.25, b" upstream")]),
    )

    drain_all(own)

    stored = storage.read(pk)
    assert stored is not None
    assert stored.upstream_reads == [(5.0, b"second"), (9.2, b" upstream")]
    assert stored.upstream_body == b"second upstream"
    assert [each.body.text for each in stored.failed] == [b"first upstream"]


def test_the_watermark_contains_the_backlog(journal: Journal, own: JournalReader) -> None:
    write(journal, opening(1))
    own.read(1)
    drainer.save_drain_watermark(journal.directory, own.backlog())
    behind = DrainWatermark.objects.get()
    assert behind.backlog == 1
    assert behind.as_of < behind.seen

    drain_all(own)
    drainer.save_drain_watermark(journal.directory, own.backlog())

    assert DrainWatermark.objects.get().backlog == 0


def test_each_turn_links_to_the_previous_one_and_its_new_messages(
    journal: Journal, own: JournalReader
) -> None:
    messages = [{"role": "user", "content": "one"}]
    write(journal, opening(1, body=body(*messages)), closing(1, answer={"content": "1"}))
    messages += [{"role": "assistant", "content": "1"}, {"role": "user", "content": "two"}]
    write(journal, opening(2, body=body(*messages)), closing(2))
    drain_all(own)
    messages += [{"role": "assistant", "content": "2"}, {"role": "user", "content": "three"}]
    write(journal, opening(3, body=body(*messages)), opening(4, body=body(*messages), key_id=2))

    drain_all(own)

    turns = {r.pk: (r.previous_id, r.new_from) for r in Exchange.objects.all()}
    assert turns == {
        exchange_id(1): ("", 0),
        exchange_id(2): (exchange_id(1), 1),
        exchange_id(3): (exchange_id(2), 3),
        exchange_id(4): ("", 0),  # the same conversation of another key
    }


def test_written_records_update_last_used_new_names_and_the_chain(team) -> None:
    key, _ = ApiKey.issue(team, "ada-laptop")
    at = datetime(2027, 3, 4, 5, 6, 7, tzinfo=UTC)
    opened = opening(1, key_id=key.pk, betas=["new-beta"], worker="w")
    drift.new_name_recorder.write(at)  # the counts of earlier tests
    Drift.objects.all().delete()

    closed = ledger_writer.write_to_database(
        [
            ExchangeRecords(opened, [], closing(1, unknown_events={"new.event": 1})),
            ExchangeRecords(opening(2, key_id=None), []),
        ],
        at,
    )

    drift.new_name_recorder.write(at)
    assert closed == 1
    assert ApiKey.objects.get().last_used == datetime.fromtimestamp(NOON + 1, UTC)
    assert HashChainLink.objects.get().day == at.date()
    assert {part.used for part in Part.objects.all()} == {at.replace(minute=0, second=0)}
    seen = {(one.kind, one.name): one.first_request for one in Drift.objects.all()}
    assert seen["beta", "new-beta"] == seen["event", "new.event"] == opened.id
    before = Drift.objects.get(name="new-beta").requests
    ledger_writer.write_to_database(
        [ExchangeRecords(opened, [], closing(1, outcome="completed"))], at
    )  # known already
    drift.new_name_recorder.write(at)
    assert Drift.objects.get(name="new-beta").requests == before


def test_prices_are_loaded_only_if_a_close_record_has_none(team) -> None:
    def price_queries(*closings: CloseRecord | None) -> int:
        batch = [ExchangeRecords(opening(n), [], one) for n, one in enumerate(closings, 1)]
        with CaptureQueriesContext(connection) as found:
            write_to_database(batch)
        return sum('FROM "proxy_price"' in query["sql"] for query in found)

    priced = closing(1, price={"input": "1", "output": "1"}, cost_nanousd=1)

    assert price_queries(priced, None) == 0
    assert price_queries(priced, closing(2)) == 1


def test_a_transcript_has_the_target_of_the_last_attempt() -> None:
    first, second, third = ({"upstream": name} for name in ("first", "second", "third"))
    elsewhere = [
        Chunk(id="r", reads=[(1.0, b"a")], attempt=1, target=second),
        Chunk(id="r", reads=[(2.0, b"b")], attempt=1),
    ]
    metadata_only = ExchangeRecords(opening(1, body=None), [], closing(1))
    batch = [
        ExchangeRecords(opening(2, target=first), [], closing(2, upstream_request_sha256="5ea1")),
        ExchangeRecords(opening(3, target=first), elsewhere, closing(3)),
        ExchangeRecords(opening(4, target=first), elsewhere, closing(4, target=third)),
        ExchangeRecords(opening(5, target=first), elsewhere),
    ]

    assert metadata_only.conversation() is None
    stored = {each.opening.id: one for each in batch if (one := each.conversation())}

    assert list(stored) == [exchange_id(n) for n in (2, 3, 4, 5)]
    assert [one.target for one in stored.values()] == [first, second, third, first]
    assert [one.upstream_request_sha256 for one in stored.values()] == ["5ea1", "", "", ""]
    assert [list(one.reads) for one in stored.values()] == [
        [], [(1.0, b"a"), (2.0, b"b")], [(1.0, b"a"), (2.0, b"b")], []
    ]  # fmt: skip
    assert [one.answer is None for one in stored.values()] == [False, False, False, True]
    assert [one.created.timestamp() - NOON for one in stored.values()] == [2, 3, 4, 5]


def test_early_compression_gives_the_same_digest_and_drops_the_reads() -> None:
    def grouped() -> ExchangeRecords:
        chunk = Chunk(id=exchange_id(1), reads=[(1.0, b"data: 1\n\n"), (2.5, b"data: 2\n\n")])
        last = [(4.0, b"data: [DONE]\n\n")]
        closed = closing(1, reads=last, answer=answer("Paris."))
        return ledger_writer.group_records([opening(1), chunk, closed]) or ExchangeRecords(
            opening(1), []
        )

    early, late = grouped(), grouped().conversation()
    early.pack(StreamCompressor())
    stored = early.conversation()

    assert stored
    assert late
    assert stored.digest() == late.digest()
    assert reads_in(stored.stream or b"", stored.dictionary()) == late.reads
    assert (early.chunks, early.closing and early.closing.reads, stored.reads) == ([], [], ())
