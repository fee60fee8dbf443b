"""The search of stored transcripts; ``database/test_on_postgresql.py`` runs this file there too."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction
from django.db.models import Max

from proxy.ledger.maintenance import retention
from proxy.ledger.posting import ledger_writer
from proxy.ledger.search import term_index
from proxy.ledger.search.indexer import passages_of
from proxy.ledger.search.query import InvalidQuery, parse_query
from proxy.ledger.search.search import BATCH, search
from proxy.ledger.search.term_index import ENTRIES_PER_PARTITION
from proxy.models import Exchange, SearchEntry, SearchOccurrence, SessionOutcomeDay, State
from tests.for_each import for_each
from tests.proxy.admin.factories import NOON, answer_body, record, request_body
from tests.proxy.ledger.amending import FOR_PURGE
from tests.proxy.ledger.database.tables import following_ids, renamed

pytestmark = pytest.mark.django_db


def found(text, rows=None, **options):
    """Return the text and the request id of each result."""
    visible = Exchange.objects.all() if rows is None else rows
    page = search(parse_query(text), visible, **{"limit": 20, **options})
    return [("".join(f.text for f in r.fragments), r.exchange.pk) for r in page.results]


def texts(text, **options):
    return [passage for passage, _ in found(text, **options)]


def send_words(*messages, at=NOON, answer="Done.", **fields):
    body = request_body(
        messages=[{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
    )
    return record(at=at, body=body, answer=answer_body({"type": "text", "text": answer}), **fields)


PARTS = [
    "rate", "RATE limits", '"rate limits"', "limits rate", "imit",  # words, phrases, parts
    "src/app/rate_limits.py", "app/rate_lim", "limits.py", "limits.py:42",  # paths
    "TokenBucketStore", "bucketst", "kenbuc",  # identifiers
    "速率限制", "限制", "制", "レート", "naïve", "ПРИВЕТ",  # other scripts
    '"limits in src"', "привет 100%", '"100% it\'s a\\b_cd"',  # characters that are operators elsewhere
]  # fmt: skip


def test_a_text_is_found_by_any_part_of_it():
    send_words(
        "Read the rate limits in src/app/rate_limits.py:42, TokenBucketStore, 速率限制レート, "
        "naïve привет 100% it's a\\b_cde"
    )

    assert {query: len(found(query)) for query in PARTS} == dict.fromkeys(PARTS, 1)


def test_a_text_without_the_phrase_is_not_found():
    send_words("Read the rate limits in src/app/rate_limits.py: 速率限制, TokenBucketStore")

    others = ["rats limits", '"limits rate"', "app/limits", "制限", "stores"]
    assert {query: found(query) for query in others} == {query: [] for query in others}


@for_each(
    ("query", "reason"),
    [
        ("", "too short"), ("a", "too short"), ("ab", "too short"), ("/ . *", "too short"),
        ('"open phrase', "not closed"), ("x" * 201, "at most 200"),
        (" ".join(f"word{n}" for n in range(9)), "at most 8"), ("null\x00byte", "control"),
    ],
)  # fmt: skip
def test_an_invalid_query_gets_a_reason(query, reason):
    with pytest.raises(InvalidQuery, match=reason):
        parse_query(query)


@for_each(
    "query",
    ['abc" OR "x"', "terms:abc", "abc NOT def", "NEAR(abc def)", "abc*", "^abc", "{a b}:abc", "-abc",
     "'abc' | !def", "abc & def:*", "abc'; DROP TABLE proxy_part; --", "%abc%", "a_c abc"],
)  # fmt: skip
def test_operators_of_the_database_are_text(query):
    send_words(f"This contains {query} literally", at=NOON)
    send_words("abc def xyz", at=NOON + timedelta(minutes=1))

    (passage,) = texts(query)
    assert "literally" in passage


def test_every_kind_of_text_is_found_and_binary_content_is_not():
    record(
        body=request_body(
            system=[{"type": "text", "text": "You are the systemword."}],
            tools=[{"name": "Bash", "description": "Runs the toolsword.", "input_schema": {}}],
            messages=[
                {"role": "user", "content": "userword"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "thinkword", "signature": "signatureword"},
                    {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "inputword"}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "resultword"}]},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "dataword"}},
                ]},
            ],
        ),
        answer=answer_body({"type": "text", "text": "answerword"}),
    )  # fmt: skip

    kinds = {
        word: [r.kind for r in search(parse_query(word), Exchange.objects.all(), limit=5).results]
        for word in ("systemword", "toolsword", "userword", "thinkword", "inputword", "resultword",
                     "answerword", "signatureword", "dataword")
    }  # fmt: skip
    assert kinds == {
        "systemword": ["system"],
        "toolsword": ["tools"],
        "userword": ["user"],
        "thinkword": ["thinking"],
        "inputword": ["tool input"],
        "resultword": ["tool result"],
        "answerword": ["assistant"],
        "signatureword": [],
        "dataword": [],
    }


def test_a_repeated_history_is_found_once_in_the_request_that_sent_it():
    first = send_words("firstword", answer="answerword")
    reply = {"role": "assistant", "content": [{"type": "text", "text": "answerword"}]}
    second = send_words("firstword", reply, "secondword", at=NOON + timedelta(minutes=1))

    assert [pk for _, pk in found("firstword")] == [first.pk]
    assert [pk for _, pk in found("answerword")] == [first.pk]
    assert [pk for _, pk in found("secondword")] == [second.pk]


def test_a_request_that_is_written_twice_is_indexed_completely():
    at = send_words("openword", closed=False)
    assert found("openword") == [("openword", at.pk)]


def test_pages_continue_and_end():
    rows = [send_words(f"common word {n}", at=NOON + timedelta(minutes=n)) for n in range(7)]

    seen, below = [], None
    for _ in range(3):
        page = search(parse_query("common"), Exchange.objects.all(), limit=3, below=below)
        seen += [result.exchange.pk for result in page.results]
        below = page.next_position
    assert seen == [row.pk for row in reversed(rows)]
    assert below is None


def test_a_long_scan_ends_the_page_and_the_next_page_continues():
    send_words("rareword and common")
    words = [f"and rareword, common {n}" for n in range(2 * BATCH)]
    send_words(*words, at=NOON + timedelta(minutes=1))

    query, below, pages, results = parse_query('rare "rareword and"'), None, 0, []
    visible = Exchange.objects.all()
    while not pages or below is not None:
        page = search(query, visible, limit=5, below=below, scan_s=0)
        results += page.results
        below, pages = page.next_position, pages + 1
    assert len(results) == 1
    assert pages == 4  # two of full batches, that of the result, and an empty one


def test_only_visible_requests_are_results_whatever_the_others_contain():
    send_words("sharedword secretword", team="research")
    own = send_words("sharedword", at=NOON + timedelta(minutes=1), team="platform")
    visible = Exchange.objects.filter(team="platform")

    assert [pk for _, pk in found("sharedword", visible)] == [own.pk]
    assert found("secretword", visible) == []
    page = search(parse_query("secretword"), visible, limit=5)
    assert page.next_position is None
    assert found("sharedword", visible, teams=["platform"]) == found("sharedword", visible)


def test_a_text_of_two_teams_is_found_by_both():
    both = [send_words("sameword", at=NOON + timedelta(minutes=n), team=team)
            for n, team in enumerate(("platform", "research"))]  # fmt: skip

    for row in both:
        assert [pk for _, pk in found("sameword", Exchange.objects.filter(team=row.team))] == [
            row.pk
        ]


def test_a_team_that_stores_metadata_only_has_nothing_in_the_index():
    send_words("metadataword", with_content=False)

    assert found("metadataword") == []
    assert not SearchEntry.objects.exists()


def test_switched_off_no_index_is_written(settings):
    settings.SEARCH = False

    send_words("unindexedword")

    assert not SearchEntry.objects.exists()
    assert not SearchOccurrence.objects.exists()


def term_count():
    return sum(len(batch) for batch in term_index.matches(parse_query("word").conditions, None))


@for_each("retained", [False, True])
def test_retention_drops_texts_from_the_index(retained):
    send_words("oldword", at=NOON - timedelta(days=100), team="gone", answer="oldword too")
    if retained:
        send_words("newword", at=datetime.now(UTC), team="gone", answer="newword too")

    list(retention.prune_transcripts(datetime.now(UTC), FOR_PURGE))

    assert found("oldword") == []
    assert term_count() == (2 if retained else 0)
    assert SearchEntry.objects.count() == SearchOccurrence.objects.count() == (2 if retained else 0)


def test_a_text_in_a_deleted_and_a_stored_request_stays():
    send_words("sameword", at=NOON - timedelta(days=100), team="gone")
    new = send_words("sameword", at=datetime.now(UTC), team="gone")

    list(retention.prune_transcripts(datetime.now(UTC), FOR_PURGE))
    list(retention.prune_parts(datetime.now(UTC) + timedelta(days=1)))

    assert [pk for _, pk in found("sameword")] == [new.pk]


def test_a_passage_marks_all_phrases_and_where_it_is_cut():
    send_words("x" * 500 + " the first phrase and the second phrase " + "y" * 500)

    (result,) = search(parse_query("first second"), Exchange.objects.all(), limit=5).results

    assert [f.text for f in result.fragments if f.matched] == ["first", "second"]
    assert result.is_cut_before
    assert result.is_cut_after


def end_partition():
    """Let the id of the next entry be the last one of a partition."""
    last = SearchEntry.objects.aggregate(last=Max("pk"))["last"] or 0
    following_ids(SearchEntry, (last // ENTRIES_PER_PARTITION + 1) * ENTRIES_PER_PARTITION - 1)


def test_texts_in_several_partitions_are_found_newest_first():
    rows = []
    for n in range(7):
        end_partition()
        row = send_words(f"word {n}", at=NOON + timedelta(minutes=n), answer=f"A{n}")
        rows.append(row)
    partitions = {
        pk // ENTRIES_PER_PARTITION for pk in SearchEntry.objects.values_list("pk", flat=True)
    }
    assert len(partitions) == 8

    assert [pk for _, pk in found("word")] == [row.pk for row in reversed(rows)]
    assert [pk for _, pk in found('"word 0"')] == [rows[0].pk]


@pytest.mark.parametrize(
    ("name", "table"), [("search index", SearchOccurrence), ("outcomes", SessionOutcomeDay)]
)
def test_a_request_is_recorded_without_derived_data_that_cannot_be_written(name, table):
    send_words("oldword", at=NOON - timedelta(minutes=1))
    before = ledger_writer.underived[name]

    with renamed(table):
        row = send_words("firstword")

    assert Exchange.objects.get(pk=row.pk).state == State.CLOSED
    assert ledger_writer.underived[name] > before
    assert not SearchEntry.objects.filter(occurrences=None).exists()
    assert found("thirdword") == []
    send_words("thirdword", at=NOON + timedelta(minutes=1))
    assert len(found("thirdword")) == 1


@for_each("raw", [b'{"model": "\xff needle"}', b"\xff needle", b"[["])
def test_a_text_that_is_not_json_is_one_passage(raw):
    assert [passage.kind for passage in passages_of(raw)] == ["body"]


def test_a_type_that_is_a_list_is_no_binary_type():
    found = passages_of(b'{"role": "user", "content": [{"type": ["x"], "text": "needle"}]}')
    assert "needle" in [passage.text for passage in found]


def test_only_the_row_whose_data_cannot_be_derived_stays_without_it():
    rows = [Exchange(pk="req_1"), Exchange(pk="req_2"), Exchange(pk="req_3")]
    derived = []

    def derive(some):
        if any(row.pk == "req_2" for row in some):
            raise ValueError("no text")
        derived.extend(row.pk for row in some)

    before = ledger_writer.underived["test data"]
    ledger_writer.write_derived("test data", derive, rows)

    assert derived == ["req_1", "req_3"]
    assert ledger_writer.underived["test data"] == before + 1


def test_the_batch_is_written_later_if_the_savepoint_is_lost():
    def derive(_):
        connection.savepoint_commit(connection.savepoint_ids[-1])
        raise ValueError("no text")

    with pytest.raises(ValueError, match="no text"):
        ledger_writer.write_derived("test data", derive, [Exchange(pk="req_1")])

    assert connection.needs_rollback
    transaction.set_rollback(False)
