"""Columns of a row: from which record field they come and how values are converted."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from proxy.ledger.journal.records import Chunk, CloseRecord, OpenRecord
from proxy.ledger.posting.exchange_columns import (
    FIELDS,
    FROM_CLOSE,
    FROM_OPEN,
    Row,
    blank_row,
    columns_from_close,
    columns_from_message,
    columns_from_open,
    sanitise,
    set_columns,
    to_datetime,
    token_columns,
)
from proxy.ledger.posting.ledger_writer import _is_due, group_records
from proxy.ledger.usage.pricing import PriceList, price_record
from proxy.models import Price
from tests.for_each import for_each
from tests.proxy.ledger.factories import NOON, closing, opening

NO_PRICES: PriceList = PriceList(())
EARLY = datetime(2026, 11, 21, 12, 0, 1, tzinfo=UTC)


def open_row() -> Row:
    row = blank_row("req_1")
    row.created = EARLY
    return row


def filled(kind: type[OpenRecord | CloseRecord]) -> dict[str, Any]:
    """Return a value for each field of a record, different ones if possible."""
    values: dict[str, Any] = {}
    for number, each in enumerate(msgspec.structs.fields(kind), start=1):
        shapes = {str: each.name, int: number, bool: True, float: float(number)}
        values[each.name] = shapes.get(each.type, [each.name])
    return values


def test_each_field_of_an_open_record_has_its_column() -> None:
    fields = {**filled(OpenRecord), "worst_case": {}}
    record = OpenRecord(**fields | {"created": NOON, "ip": "2001:DB8::1"})

    columns = columns_from_open(record)

    assert columns == {
        **{name: getattr(record, name) for name in FROM_OPEN},
        "id": "id", "state": "open", "created": to_datetime(NOON), "ip": "2001:db8::1",
    }  # fmt: skip
    assert columns_from_open(opening(ip=None))["ip"] is None
    assert columns_from_open(opening(ip="nowhere"))["ip"] is None


def test_each_field_of_a_close_record_has_its_column() -> None:
    fields = {**filled(CloseRecord), "outcome": "drained", "usage": {}, "answer": None}
    fields["attempts"] = [{"upstream": "attempts"}]
    record = CloseRecord(**fields | {"price": None, "finished": NOON})

    columns = columns_from_close(record, open_row(), NO_PRICES)

    assert columns == {
        **{name: getattr(record, name) for name in FROM_CLOSE},
        **{name: name for name in ("model_upstream", "upstream", "dialect")},
        "state": "closed", "finished": to_datetime(NOON), "cost_nanousd": None, "price": None,
        **token_columns({}),
    }  # fmt: skip


def test_an_open_row_has_the_tokens_that_a_hard_budget_reserved() -> None:
    worst = {"input": 70, "output": 900, "source": "estimated"}

    columns = columns_from_open(opening(worst_case=worst))

    assert {name: columns[name] for name in token_columns(worst)} == token_columns(worst)
    assert (columns["output_tokens"], columns["output_source"]) == (900, "estimated")
    assert not token_columns(worst).keys() & columns_from_open(opening()).keys()


def test_a_close_record_without_target_does_not_change_it() -> None:
    columns = columns_from_close(closing(), open_row(), NO_PRICES)

    assert not {"model_upstream", "upstream", "dialect"} & columns.keys()


def test_an_unknown_outcome_is_a_gateway_error() -> None:
    columns = columns_from_close(closing(outcome="lost"), open_row(), NO_PRICES)

    assert (columns["outcome"], columns["detail"]) == ("gateway_error", "unknown outcome 'lost'")


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


@for_each(
    ("close", "cost"),
    [
        ({}, 320_000 + 34_000 + 4_000_000),
        ({"model_upstream": "dear"}, 10 * (320_000 + 34_000 + 4_000_000)),
        ({"model_upstream": "unknown"}, None),
        ({"usage": {"input": 1}}, None),
        ({"price": {"input": "5", "output": "0"}}, 5 * 4_320_000),
        ({"price": {"input": "5", "output": "0"}, "cost_nanousd": 7}, 7),
        ({"cost_nanousd": 7}, 320_000 + 34_000 + 4_000_000),  # ignored without a price
    ],
)  # fmt: skip
def test_the_price_is_that_of_the_close_record_or_of_the_day_of_acceptance(close, cost) -> None:
    prices = PriceList([
        price(),
        price(model="dear", input=Decimal(10), output=Decimal(20)),
        price(since=date(2026, 11, 22), input=Decimal(99)),
    ])  # fmt: skip
    row = open_row()
    row.upstream, row.model_upstream = "openai", "gpt-5.2"

    columns = columns_from_close(closing(**close), row, prices)

    assert columns["cost_nanousd"] == cost
    expected = close.get("price")
    if expected is None and cost is not None:
        expected = prices.at("", close.get("model_upstream", "gpt-5.2"), date(2026, 11, 21))
    assert columns["price"] == (expected if cost is not None else None)


def test_a_price_record_has_all_prices() -> None:
    assert price_record(price(id=3, cache_read=Decimal("0.125"))) == {
        "id": 3, "upstream": None, "model": "gpt-5.2", "since": "2026-11-21", "input": "1",
        "output": "2", "cache_read": "0.125", "cache_write_5m": None, "cache_write_1h": None,
    }  # fmt: skip


def test_each_token_class_has_its_column_and_source() -> None:
    columns = token_columns({
        "input": 1, "output": 2, "cache_read": 3, "cache_write_5m": 4, "cache_write_1h": 5,
        "reasoning": 6, "web_searches": 7, "service_tier": "flex", "source": "reported",
        "output_source": "estimated", "cache_read_source": "custom",
    })  # fmt: skip

    assert columns == {
        "input_tokens": 1, "output_tokens": 2, "cache_read_tokens": 3, "cache_write_5m_tokens": 4,
        "cache_write_1h_tokens": 5, "reasoning_tokens": 6, "input_source": "reported",
        "output_source": "estimated", "cache_read_source": "custom", "reasoning_source": "reported",
        "cache_write_source": "reported", "web_searches": 7, "service_tier": "flex",
        "speed": "", "inference_geo": "", "iterations": [],
    }  # fmt: skip


@for_each(
    ("usage", "source"),
    [
        ({}, "missing"),
        ({"cache_write_1h": 1, "source": "reported"}, "reported"),
        ({"cache_write_5m": 1, "cache_write_source": "estimated"}, "estimated"),
        ({"cache_write_5m": 1}, "missing"),
    ],
)
def test_cache_writes_have_one_source(usage, source) -> None:
    assert token_columns(usage)["cache_write_source"] == source
    assert token_columns({})["service_tier"] == ""


@for_each(
    ("content", "names", "has_thinking"),
    [
        (None, [], False),
        ([{"type": "text", "name": "no tool"}, "words"], [], False),
        ([{"type": "tool_use", "name": n} for n in ("b", "a", "b")], ["a", "b"], False),
        ([{"type": "tool_use"}], ["None"], False),
        ([{"type": "thinking"}], [], True),
        ([{"type": "redacted_thinking"}], [], True),
    ],
)
def test_tools_and_thinking_of_a_response_become_columns(content, names, has_thinking) -> None:
    calls = sum(isinstance(b, dict) and b["type"] == "tool_use" for b in content or ())

    assert columns_from_message({"content": content}) == {
        "tool_calls": calls, "tool_names": names, "has_thinking": has_thinking,
    }  # fmt: skip
    assert columns_from_message(None) == {}
    assert columns_from_message({})["tool_calls"] == 0


@for_each(
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
def test_sanitise_cleans_values_at_any_depth(value, fit) -> None:
    assert sanitise(value) == fit


@for_each(
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
def test_a_value_is_converted_for_its_column(column, value, fit) -> None:
    row = blank_row("req_1")

    set_columns(row, {column: value})

    assert getattr(row, column) == fit
    assert {n: v for n, v in vars(row).items() if n != column} == {
        n: v for n, v in vars(blank_row("req_1")).items() if n != column
    }


def test_a_blank_row_has_every_column() -> None:
    row = blank_row("req_1")

    assert vars(row).keys() == FIELDS.keys()
    assert (row.id, row.pk, row.outcome, row.tags) == ("req_1", "req_1", "", {})


@for_each("seconds", [1e18, float("inf"), float("nan")])
def test_an_invalid_time_is_an_error(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"not a valid time|NaN"):
        to_datetime(seconds)
    assert to_datetime(NOON) == datetime(2026, 11, 21, 12, tzinfo=UTC)


INTERRUPTED = closing(outcome="interrupted")
COMPLETED = closing(status=201)


@for_each(
    ("records", "expected"),
    [
        ([COMPLETED, closing(status=202)], COMPLETED),
        ([INTERRUPTED, COMPLETED], COMPLETED),
        ([COMPLETED, INTERRUPTED], COMPLETED),
        ([INTERRUPTED, closing(outcome="interrupted", status=1)], INTERRUPTED),
    ],
)
def test_the_first_real_close_record_is_used(records, expected) -> None:
    group = group_records([opening(), *records])

    assert group is not None
    assert (group.closing, group.chunks) == (expected, [])


def test_grouped_records_have_the_first_open_record_and_all_chunks() -> None:
    first, last = Chunk(id="req_1", reads=[(1.0, b"a")]), [(2.0, b"b")]
    ended = closing(reads=last, attempt=3)

    group = group_records([opening(), first, opening(team="other"), ended])

    assert group is not None
    assert group.opening == opening()
    assert group.chunks == [first, Chunk(id=ended.id, reads=last, attempt=3)]
    assert group_records([first, ended]) is None


@for_each(
    ("state", "outcome", "close", "due"),
    [
        ("open", "", None, False),
        ("open", "", COMPLETED, True),
        ("closed", "completed", COMPLETED, False),
        ("closed", "interrupted", COMPLETED, True),
        ("closed", "interrupted", INTERRUPTED, False),
        ("closed", "completed", INTERRUPTED, False),
    ],
)
def test_a_row_is_written_again_only_for_a_new_close_record(state, outcome, close, due) -> None:
    group = group_records([opening(), *([close] if close else [])])
    assert group is not None

    assert _is_due(group, Row(state=state, outcome=outcome)) is due
    assert _is_due(group, None)
