"""Records become rows exactly once, whole, and fitted to what a database can hold."""

from datetime import UTC, datetime

import pytest

from proxy.models import (
    ApiKey,
    DrainMark,
    Drift,
    Exchange,
    Part,
    Price,
    QuarterUsage,
    Seal,
    Transcript,
    Upstream,
)
from proxy.record import drainer, drift, posting, spool_file, transcripts
from proxy.record.conversation import Packing, reads_in
from proxy.record.drainer import Source
from proxy.record.posting import Story
from proxy.record.records import Chunk
from proxy.record.spool import Spool

from .conftest import drain_all
from .making import NOON, answer, body, closing, exchange_id, opening

pytestmark = pytest.mark.django_db


def write(spool: Spool, *records) -> None:
    for record in records:
        spool.append(record)


def test_an_open_record_is_a_row_at_once(spool: Spool, source: Source) -> None:
    write(spool, opening(1, session_id="s-1", user_agent="claude-cli/2"))

    drain_all(source)

    row = Exchange.objects.get()
    assert (row.state, row.outcome, row.finished) == ("open", "", None)
    assert (row.team, row.key_name, row.session_id) == ("platform", "ada-laptop", "s-1")
    assert row.created == datetime.fromtimestamp(NOON + 1, UTC)
    assert row.preview == "What is the capital of France?"
    assert not QuarterUsage.objects.exists()


TOLD = {"role": "system", "content": "The agents that there are."}
CALLED = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]}


@pytest.mark.parametrize(
    ("messages", "preview"),
    [
        (["Mend it.", TOLD], "Mend it."),
        (["Mend it.", TOLD, TOLD], "Mend it."),
        (["Mend it.", CALLED, TOLD], "[tool result]"),
        ([TOLD], "The agents that there are."),
        ([["no message"]], ""),
    ],
)
def test_the_preview_is_what_the_user_said(spool: Spool, source: Source, messages, preview) -> None:
    """Claude Code ends its list with a system message of its own."""
    write(spool, opening(1, body=body(*messages)))

    drain_all(source)

    assert Exchange.objects.get().preview == preview


def test_the_close_record_completes_the_row(spool: Spool, source: Source) -> None:
    write(spool, opening(1))
    drain_all(source)
    write(spool, Chunk(id=exchange_id(1), reads=[(1.0, b"data: 1\n\n")]))
    write(spool, closing(1, detail="", notes=[{"path": "top_k", "fate": "dropped", "reason": "x"}]))

    drain_all(source)

    row = Exchange.objects.get()
    assert (row.state, row.outcome, row.status) == ("closed", "completed", 200)
    assert (row.input_tokens, row.output_tokens, row.cache_read_tokens) == (320, 17, 4000)
    assert (row.reasoning_tokens, row.reasoning_source) == (None, "missing")
    assert (row.input_source, row.cache_write_source) == ("reported", "missing")
    assert row.cost_nanousd is None
    assert row.notes == [{"path": "top_k", "fate": "dropped", "reason": "x"}]
    assert Seal.objects.get().exchange_id == row.pk


def test_posting_everything_again_changes_nothing(spool: Spool, source: Source) -> None:
    for number in range(30):
        write(spool, opening(number), closing(number))
    drain_all(source)
    before = [list(table.objects.order_by("pk").values()) for table in (Exchange, Part, Seal)]
    sums = list(QuarterUsage.objects.values("requests", "input_reported"))

    restored = spool_file.restore(source.link, 0)
    drain_all(source)

    assert restored == 60
    assert before == [list(t.objects.order_by("pk").values()) for t in (Exchange, Part, Seal)]
    assert sums == list(QuarterUsage.objects.values("requests", "input_reported"))
    assert sum(one["requests"] for one in sums) == 30


def test_a_crash_between_the_database_and_the_mark_doubles_nothing(
    spool: Spool, source: Source
) -> None:
    write(spool, opening(1), closing(1))
    forgetful = Source(source.link, lambda *_: None)  # the process died before it could mark

    drainer._drain_some(forgetful, [exchange_id(1)])
    drain_all(source)

    assert Exchange.objects.count() == Seal.objects.count() == 1
    assert QuarterUsage.objects.get().requests == 1


def test_a_true_ending_beats_the_guess_that_the_process_died(spool: Spool, source: Source) -> None:
    write(spool, opening(1), closing(1, outcome="interrupted", usage={}))
    drain_all(source)
    write(spool, closing(1))

    drain_all(source)

    assert Exchange.objects.get().outcome == "completed"
    assert {u.outcome: u.requests for u in QuarterUsage.objects.filter(requests__gt=0)} == {
        "completed": 1
    }


def test_a_team_that_keeps_metadata_only_leaves_no_word(spool: Spool, source: Source) -> None:
    write(
        spool, opening(1, body=None, message_count=3), closing(1, answer=None, tool_names=["Read"])
    )

    drain_all(source)

    row = Exchange.objects.get()
    assert (row.preview, row.message_count, row.tool_names) == ("", 3, ["Read"])
    assert not Transcript.objects.exists()
    assert not Part.objects.exists()
    assert Seal.objects.get().body_digest is None


HOSTILE = {
    "user_agent": "x\x00y" + "z" * 1000,
    "model_requested": "m" * 500,
    "tags": {"a\x00": "\ud800"},
    "ip": "not an address",
    "body": b'{"messages": [{"role": "user", "content": "\\u0000 nul"}]}',
}


def test_hostile_text_is_fitted_and_stops_nobody(spool: Spool, source: Source) -> None:
    fields = {**HOSTILE, "tags": {"a\x00": "b"}}
    write(spool, opening(1, **fields), opening(2))
    write(spool, closing(1, error_message="\x00" * 10, attempts=[{"ms": float("inf")}]), closing(2))

    drain_all(source)

    row = Exchange.objects.get(pk=exchange_id(1))
    assert len(row.user_agent) == 300
    assert len(row.model_requested) == 200
    assert row.user_agent.startswith("x\ufffdy")
    assert row.ip is None
    assert row.attempts == [{"ms": None}]
    assert Exchange.objects.filter(state="closed").count() == 2


def test_a_record_that_the_database_refuses_is_set_aside_alone(
    spool: Spool, source: Source
) -> None:
    write(spool, opening(1), opening(2, created=float(10**18)), opening(3))

    drain_all(source)

    assert list(Exchange.objects.order_by("pk").values_list("pk", flat=True)) == [
        exchange_id(1),
        exchange_id(3),
    ]
    assert spool_file.backlog(source.link).set_aside == 1


def test_a_body_that_is_no_json_is_kept_as_it_is(spool: Spool, source: Source) -> None:
    write(spool, opening(1, body=b"\xff not json"), closing(1))

    drain_all(source)

    stored = transcripts.read(exchange_id(1))
    assert stored is not None
    assert stored.request == {"raw": "\ufffd not json"}


def test_a_body_that_was_refused_is_no_turn_of_a_conversation(spool: Spool, source: Source) -> None:
    said = body({"role": "user", "content": 5}, metadata={"user_id": "_session_0123456789"})
    write(spool, opening(1, body=said, faulty=True), closing(1, outcome="refused", answer=None))

    drain_all(source)

    stored = transcripts.read(exchange_id(1))
    assert stored is not None
    assert stored.request == {"raw": said.decode()}
    row = Exchange.objects.get()
    assert (row.session_id, row.preview, row.message_count, row.previous_id) == ("", "", 0, "")


def test_the_price_in_force_is_used_and_kept(spool: Spool, source: Source) -> None:
    openai = Upstream.objects.create(name="openai", dialect="responses", base_url="https://x.test")
    Price.objects.create(
        upstream=openai, model="gpt-5.2", since="2026-01-01", input="1.25", output="10",
        cache_read="0.125",
    )  # fmt: skip
    Price.objects.create(
        upstream=openai, model="gpt-5.2", since="2027-01-01", input="9", output="9"
    )
    write(spool, opening(1), closing(1))

    drain_all(source)

    row = Exchange.objects.get()
    assert row.cost_nanousd == 320 * 1250 + 17 * 10_000 + 4000 * 125
    assert row.price["since"] == "2026-01-01"
    assert QuarterUsage.objects.get().unpriced == 0


def test_the_reads_of_the_attempt_that_answered_are_kept(spool: Spool, source: Source) -> None:
    pk = exchange_id(1)
    write(
        spool,
        opening(1),
        Chunk(id=pk, reads=[(1.0, b"first upstream")], attempt=0),
        Chunk(id=pk, reads=[(5.0, b"second")], attempt=1),
        closing(1, attempt=1, reads=[(9.25, b" upstream")]),
    )

    drain_all(source)

    stored = transcripts.read(pk)
    assert stored is not None
    assert stored.upstream_reads == [(5.0, b"second"), (9.2, b" upstream")]
    assert stored.upstream_body == b"second upstream"
    assert [each.body.text for each in stored.failed] == [b"first upstream"]


def test_the_mark_tells_how_far_the_database_has_come(spool: Spool, source: Source) -> None:
    write(spool, opening(1))
    drainer.mark(spool.path, spool_file.backlog(source.link))
    behind = DrainMark.objects.get()
    assert behind.backlog == 1
    assert behind.as_of < behind.seen

    drain_all(source)
    drainer.mark(spool.path, spool_file.backlog(source.link))

    assert DrainMark.objects.get().backlog == 0


def test_each_turn_knows_the_one_before_and_what_is_new(spool: Spool, source: Source) -> None:
    said = [{"role": "user", "content": "one"}]
    write(spool, opening(1, body=body(*said)), closing(1, answer={"content": "1"}))
    said += [{"role": "assistant", "content": "1"}, {"role": "user", "content": "two"}]
    write(spool, opening(2, body=body(*said)), closing(2))
    drain_all(source)
    said += [{"role": "assistant", "content": "2"}, {"role": "user", "content": "three"}]
    write(spool, opening(3, body=body(*said)), opening(4, body=body(*said), key_id=2))

    drain_all(source)

    turns = {r.pk: (r.previous_id, r.new_from) for r in Exchange.objects.all()}
    assert turns == {
        exchange_id(1): ("", 0),
        exchange_id(2): (exchange_id(1), 1),
        exchange_id(3): (exchange_id(2), 3),
        exchange_id(4): ("", 0),  # another key's conversation, however alike
    }


def test_what_is_posted_is_told_to_all_who_keep_count(team, monkeypatch) -> None:
    key, _ = ApiKey.issue(team, "ada-laptop")
    at = datetime(2027, 3, 4, 5, 6, 7, tzinfo=UTC)
    told = opening(1, key_id=key.pk, betas=["new-beta"], worker="w")
    monkeypatch.setattr(drift, "radar", drift.Radar())

    closed = posting.post(
        [
            Story(told, [], closing(1, unknown_events={"odd.event": 1})),
            Story(opening(2, key_id=None), []),
        ],
        at,
    )

    assert closed == 1
    assert ApiKey.objects.get().last_used == datetime.fromtimestamp(NOON + 1, UTC)
    assert Seal.objects.get().day == at.date()
    assert {part.used for part in Part.objects.all()} == {at.replace(minute=0, second=0)}
    seen = {(one.kind, one.name): one.first_request for one in Drift.objects.all()}
    assert seen["beta", "new-beta"] == seen["event", "odd.event"] == told.id
    before = Drift.objects.get(name="new-beta").requests
    posting.post([Story(told, [], closing(1, outcome="completed"))], at)  # known already
    drift.radar._write(at)
    assert Drift.objects.get(name="new-beta").requests == before


def test_prices_are_read_where_a_close_record_brings_none(team, django_assert_num_queries) -> None:
    Price.objects.create(model="m", since="2026-01-01", input=1, output=1)
    priced, unpriced, running = (
        Story(opening(1), [], one) for one in (closing(1, price={}), closing(1), None)
    )
    day = datetime(2026, 5, 5, tzinfo=UTC).date()

    with django_assert_num_queries(0):
        assert posting._prices([priced, running]).at("", "m", day) is None
    with django_assert_num_queries(1):
        assert posting._prices([running, priced, unpriced]).at("", "m", day)


def test_the_transcript_names_who_answered_in_the_end() -> None:
    first, second, third = ({"upstream": name} for name in ("first", "second", "third"))
    elsewhere = [
        Chunk(id="r", reads=[(1.0, b"a")], attempt=1, target=second),
        Chunk(id="r", reads=[(2.0, b"b")], attempt=1),
    ]
    silent = Story(opening(1, body=None), [], closing(1))
    told = [
        Story(opening(2, target=first), [], closing(2, upstream_request_sha256="5ea1")),
        Story(opening(3, target=first), elsewhere, closing(3)),
        Story(opening(4, target=first), elsewhere, closing(4, target=third)),
        Story(opening(5, target=first), elsewhere),
    ]

    kept = posting._conversations([silent, *told])

    assert list(kept) == [exchange_id(n) for n in (2, 3, 4, 5)]
    assert [one.target for one in kept.values()] == [first, second, third, first]
    assert [one.upstream_request_sha256 for one in kept.values()] == ["5ea1", "", "", ""]
    assert [list(one.reads) for one in kept.values()] == [
        [], [(1.0, b"a"), (2.0, b"b")], [(1.0, b"a"), (2.0, b"b")], []
    ]  # fmt: skip
    assert [one.answer is None for one in kept.values()] == [False, False, False, True]
    assert [one.created.timestamp() - NOON for one in kept.values()] == [2, 3, 4, 5]


def test_what_is_packed_early_is_the_same_and_keeps_no_reads() -> None:
    def told() -> Story:
        chunk = Chunk(id=exchange_id(1), reads=[(1.0, b"data: 1\n\n"), (2.5, b"data: 2\n\n")])
        last = [(4.0, b"data: [DONE]\n\n")]
        closed = closing(1, reads=last, answer=answer("Paris."))
        return posting.story_of([opening(1), chunk, closed]) or Story(opening(1), [])

    early, late = told(), told().conversation()
    early.pack(Packing())
    kept = early.conversation()

    assert kept
    assert late
    assert kept.digest() == late.digest()
    assert reads_in(kept.stream or b"", kept.dictionary()) == late.reads
    assert (early.chunks, early.closing and early.closing.reads, kept.reads) == ([], [], ())
