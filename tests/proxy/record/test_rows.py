"""What a row is made of: each column of a record, who said it, and what makes a value fit."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from proxy.models import Price
from proxy.record.posting import _is_due, story_of
from proxy.record.pricing import PriceList, snapshot
from proxy.record.records import Chunk, CloseRecord, OpenRecord
from proxy.record.rows import (
    FIELDS,
    FROM_CLOSE,
    FROM_OPEN,
    Row,
    answered,
    apply,
    blank,
    clean,
    closed,
    moment,
    opened,
    tokens,
)

from .making import NOON, closing, opening

NOBODY: PriceList = PriceList(())
EARLY = datetime(2026, 11, 21, 12, 0, 1, tzinfo=UTC)


def begun() -> Row:
    row = blank("req_1")
    row.created = EARLY
    return row


def filled(kind: type[OpenRecord | CloseRecord]) -> dict[str, Any]:
    """A value for each field of a record, no two alike where that can be."""
    values: dict[str, Any] = {}
    for number, each in enumerate(msgspec.structs.fields(kind), start=1):
        shapes = {str: each.name, int: number, bool: True, float: float(number)}
        values[each.name] = shapes.get(each.type, [each.name])
    return values


def test_each_column_of_an_open_record_is_its_own() -> None:
    fields = {**filled(OpenRecord), "worst_case": {}}
    record = OpenRecord(**fields | {"created": NOON, "ip": "2001:DB8::1"})

    told = opened(record)

    assert told == {
        **{name: getattr(record, name) for name in FROM_OPEN},
        "id": "id", "state": "open", "created": moment(NOON), "ip": "2001:db8::1",
    }  # fmt: skip
    assert opened(opening(ip=None))["ip"] is None
    assert opened(opening(ip="nowhere"))["ip"] is None


def test_each_column_of_a_close_record_is_its_own() -> None:
    fields = {**filled(CloseRecord), "outcome": "drained", "usage": {}, "answer": None}
    fields["attempts"] = [{"upstream": "attempts"}]
    record = CloseRecord(**fields | {"price": None, "finished": NOON})

    told = closed(record, begun(), NOBODY)

    assert told == {
        **{name: getattr(record, name) for name in FROM_CLOSE},
        **{name: name for name in ("model_upstream", "upstream", "dialect")},
        "state": "closed", "finished": moment(NOON), "cost_nanousd": None, "price": None,
        **tokens({}),
    }  # fmt: skip


def test_what_a_hard_budget_reserved_stands_in_an_open_row() -> None:
    worst = {"input": 70, "output": 900, "source": "estimated"}

    told = opened(opening(worst_case=worst))

    assert {name: told[name] for name in tokens(worst)} == tokens(worst)
    assert (told["output_tokens"], told["output_source"]) == (900, "estimated")
    assert not tokens(worst).keys() & opened(opening()).keys()


def test_who_answered_stays_where_the_close_record_does_not_say() -> None:
    told = closed(closing(), begun(), NOBODY)

    assert not {"model_upstream", "upstream", "dialect"} & told.keys()


def test_an_outcome_that_nobody_knows_is_a_fault_of_ours() -> None:
    told = closed(closing(outcome="lost"), begun(), NOBODY)

    assert (told["outcome"], told["detail"]) == ("gateway_error", "unknown outcome 'lost'")


def price(**fields: Any) -> Price:
    return Price(
        **{
            "model": "gpt-5.2",
            "since": date(2026, 11, 21),
            "input": Decimal(1),
            "output": Decimal(2),
        }
        | fields
    )


@pytest.mark.parametrize(
    ("close", "cost"),
    [
        ({}, 320_000 + 34_000 + 4_000_000),
        ({"model_upstream": "dear"}, 10 * (320_000 + 34_000 + 4_000_000)),
        ({"model_upstream": "unknown"}, None),
        ({"usage": {"input": 1}}, None),
        ({"price": {"input": "5", "output": "0"}}, 5 * 4_320_000),
        ({"price": {"input": "5", "output": "0"}, "cost_nanousd": 7}, 7),
        ({"cost_nanousd": 7}, 320_000 + 34_000 + 4_000_000),  # without its price: not settled
    ],
)  # fmt: skip
def test_the_price_is_the_close_record_s_or_that_of_the_day_it_was_accepted(close, cost) -> None:
    prices = PriceList([
        price(),
        price(model="dear", input=Decimal(10), output=Decimal(20)),
        price(since=date(2026, 11, 22), input=Decimal(99)),
    ])  # fmt: skip
    row = begun()
    row.upstream, row.model_upstream = "openai", "gpt-5.2"

    told = closed(closing(**close), row, prices)

    assert told["cost_nanousd"] == cost
    expected = close.get("price")
    if expected is None and cost is not None:
        expected = prices.at("", close.get("model_upstream", "gpt-5.2"), date(2026, 11, 21))
    assert told["price"] == (expected if cost is not None else None)


def test_a_price_is_kept_as_it_was() -> None:
    assert snapshot(price(id=3, cache_read=Decimal("0.125"))) == {
        "id": 3, "upstream": None, "model": "gpt-5.2", "since": "2026-11-21", "input": "1",
        "output": "2", "cache_read": "0.125", "cache_write_5m": None, "cache_write_1h": None,
    }  # fmt: skip


def test_each_class_of_tokens_has_its_column_and_its_source() -> None:
    told = tokens({
        "input": 1, "output": 2, "cache_read": 3, "cache_write_5m": 4, "cache_write_1h": 5,
        "reasoning": 6, "web_searches": 7, "service_tier": "flex", "source": "reported",
        "output_source": "estimated", "cache_read_source": "odd",
    })  # fmt: skip

    assert told == {
        "input_tokens": 1, "output_tokens": 2, "cache_read_tokens": 3, "cache_write_5m_tokens": 4,
        "cache_write_1h_tokens": 5, "reasoning_tokens": 6, "input_source": "reported",
        "output_source": "estimated", "cache_read_source": "odd", "reasoning_source": "reported",
        "cache_write_source": "reported", "web_searches": 7, "service_tier": "flex",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("usage", "source"),
    [
        ({}, "missing"),
        ({"cache_write_1h": 1, "source": "reported"}, "reported"),
        ({"cache_write_5m": 1, "cache_write_source": "estimated"}, "estimated"),
        ({"cache_write_5m": 1}, "missing"),
    ],
)
def test_what_was_written_to_a_cache_has_one_source(usage, source) -> None:
    assert tokens(usage)["cache_write_source"] == source
    assert tokens({})["service_tier"] == ""


@pytest.mark.parametrize(
    ("content", "names", "thought"),
    [
        (None, [], False),
        ([{"type": "text", "name": "no tool"}, "words"], [], False),
        ([{"type": "tool_use", "name": n} for n in ("b", "a", "b")], ["a", "b"], False),
        ([{"type": "tool_use"}], ["None"], False),
        ([{"type": "thinking"}], [], True),
        ([{"type": "redacted_thinking"}], [], True),
    ],
)
def test_what_an_answer_shows(content, names, thought) -> None:
    calls = sum(isinstance(b, dict) and b["type"] == "tool_use" for b in content or ())

    assert answered({"content": content}) == {
        "tool_calls": calls, "tool_names": names, "has_thinking": thought,
    }  # fmt: skip
    assert answered(None) == {}
    assert answered({})["tool_calls"] == 0


@pytest.mark.parametrize(
    ("value", "fit"),
    [
        ("a\x00\ud800b", "a\ufffd?b"),
        ({1: "\x00", "k\x00": [float("inf")]}, {"1": "\ufffd", "k\ufffd": [None]}),
        (("a", float("nan"), 1.5), ["a", None, 1.5]),
        (7, 7),
        (None, None),
        (True, True),
    ],
)
def test_a_value_is_cleaned_at_any_depth(value, fit) -> None:
    assert clean(value) == fit


@pytest.mark.parametrize(
    ("column", "value", "fit"),
    [
        ("status", 200, 200),
        ("status", 0, 0),
        ("status", 40_000, 32_767),
        ("status", -1, 0),
        ("status", 32_767, 32_767),
        ("team", "t" * 5_000, "t" * FIELDS["team"].max_length),
        ("detail", "one\ntwo\x00", "one\ntwo\ufffd"),
        ("team", 7, "7"),
        ("total_ms", 2.5, 2.5),
        ("total_ms", float("nan"), 0.0),
        ("ttft_ms", 1, 1.0),
        ("total_ms", None, None),
        ("tags", {}, {}),
        ("tags", {"a": "\x00"}, {"a": "\ufffd"}),
        ("tags", {"a": "\ud800", "n": 2**70}, {"a": "?", "n": 2**70}),
        ("stream", True, True),
        ("created", EARLY, EARLY),
    ],
)
def test_a_value_is_fitted_to_its_column(column, value, fit) -> None:
    row = blank("req_1")

    apply(row, {column: value})

    assert getattr(row, column) == fit
    assert {n: v for n, v in vars(row).items() if n != column} == {
        n: v for n, v in vars(blank("req_1")).items() if n != column
    }


def test_a_blank_row_has_every_column() -> None:
    row = blank("req_1")

    assert vars(row).keys() == FIELDS.keys()
    assert (row.id, row.pk, row.outcome, row.tags) == ("req_1", "req_1", "", {})


@pytest.mark.parametrize("seconds", [1e18, float("inf"), float("nan")])
def test_what_is_no_point_in_time_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"point in time|NaN"):
        moment(seconds)
    assert moment(NOON) == datetime(2026, 11, 21, 12, tzinfo=UTC)


GUESS = closing(outcome="interrupted")
TRUTH = closing(status=201)


@pytest.mark.parametrize(
    ("records", "told"),
    [
        ([TRUTH, closing(status=202)], TRUTH),
        ([GUESS, TRUTH], TRUTH),
        ([TRUTH, GUESS], TRUTH),
        ([GUESS, closing(outcome="interrupted", status=1)], GUESS),
    ],
)
def test_the_first_true_ending_of_a_story_counts(records, told) -> None:
    story = story_of([opening(), *records])

    assert story is not None
    assert (story.closing, story.chunks) == (told, [])


def test_a_story_has_its_first_opening_and_all_that_was_read() -> None:
    first, last = Chunk(id="req_1", reads=[(1.0, b"a")]), [(2.0, b"b")]
    ended = closing(reads=last, attempt=3)

    story = story_of([opening(), first, opening(team="other"), ended])

    assert story is not None
    assert story.opening == opening()
    assert story.chunks == [first, Chunk(id=ended.id, reads=last, attempt=3)]
    assert story_of([first, ended]) is None


@pytest.mark.parametrize(
    ("state", "outcome", "close", "due"),
    [
        ("open", "", None, False),
        ("open", "", TRUTH, True),
        ("closed", "completed", TRUTH, False),
        ("closed", "interrupted", TRUTH, True),
        ("closed", "interrupted", GUESS, False),
        ("closed", "completed", GUESS, False),
    ],
)
def test_a_row_is_written_again_for_an_ending_only(state, outcome, close, due) -> None:
    story = story_of([opening(), *([close] if close else [])])
    assert story is not None

    assert _is_due(story, Row(state=state, outcome=outcome)) is due
    assert _is_due(story, None)
