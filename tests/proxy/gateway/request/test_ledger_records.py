"""The parts of the ledger's records; other tests cover whole requests."""

from datetime import date
from types import SimpleNamespace

from proxy.gateway.http.errors import HttpError
from proxy.gateway.request import ledger_records
from tests.for_each import for_each
from translator.anthropic.usage import Usage
from translator.dialect import UpstreamError
from translator.notes import Note

LATE = UpstreamError(status=504, error_type="timeout_error", message="m" * 3_000)


@for_each(
    ("usage", "tokens"),
    [
        (Usage(), 0),
        (Usage(input=1, output=20), 21),
        (Usage(input=1, output=20, cache_write_5m=300, cache_write_1h=4_000), 4_321),
        # Cache reads do not count; reasoning is part of the output.
        (Usage(input=1, output=20, cache_read=9, reasoning=9), 21),
    ],
)
def test_tokens_that_count_for_a_rate_limit(usage, tokens):
    assert ledger_records.total_tokens(usage) == tokens


@for_each(
    ("content", "tools", "thought"),
    [
        (None, [], False),
        ([], [], False),
        ([{"type": "text"}, {"type": "tool_use", "name": "f"}], ["f"], False),
        ([{"type": "tool_use", "name": "f"}] * 2, ["f", "f"], False),
        ([{"type": "thinking"}, {"type": "tool_use", "name": 7}], ["7"], True),
        ([{"type": "redacted_thinking"}], [], True),
        ([{"type": "server_tool_use", "name": "web_search"}], [], False),
    ],
)
def test_tools_and_thinking_of_a_message(content, tools, thought):
    message = None if content is None else {"content": content}

    assert ledger_records.tools_and_thinking(message) == (tools, thought)


def test_a_note_keeps_quoted_text_only_if_content_is_stored():
    note = Note("model", "ignored", "no price for 'opus' and 'x'")

    with_quotes, without_quotes = (
        [*ledger_records.note_records([note], with_quotes=quotes)] for quotes in (True, False)
    )

    assert with_quotes == [
        {"path": "model", "fate": "ignored", "reason": "no price for 'opus' and 'x'"}
    ]
    assert without_quotes == [
        {"path": "model", "fate": "ignored", "reason": "no price for '…' and '…'"}
    ]


@for_each(
    ("reasons", "fault", "detail"),
    [
        ([], None, ""),
        (["it is unusual"], None, ""),
        (["it is unusual", "bad_usage: input", "bad_event: x"], "why", "bad_usage"),
        (["bad_" + "x" * 300], None, "bad_" + "x" * 196),
        ([], "why", "bad_event"),
    ],
)
def test_the_detail_of_a_response(reasons, fault, detail):
    notes = [Note("p", "ignored", reason) for reason in reasons]

    assert ledger_records.detail_of(SimpleNamespace(notes=notes, fault=fault)) == detail
    assert ledger_records.detail_of(None) == ""


def failed_request(
    *, headers_sent=False, bytes_at_disconnect=None, cancel_reason=None, outcome="", store_full=True
) -> SimpleNamespace:
    """Return the attributes of a ``Request`` that a failed request needs."""
    response = SimpleNamespace(
        headers_sent=headers_sent,
        bytes_at_disconnect=bytes_at_disconnect,
        cancel_reason=cancel_reason,
    )
    team = SimpleNamespace(store_full=store_full)
    caller = SimpleNamespace(team=team)
    return SimpleNamespace(response=response, outcome=outcome, caller=caller)


REFUSED = HttpError(429, "rate_limit_error", "r" * 3_000, source="gateway")


@for_each(
    ("fields", "refusal", "ending"),
    [
        (
            {"bytes_at_disconnect": 7, "headers_sent": True, "outcome": "drained"},
            REFUSED,
            ("client_gone", 499),
        ),
        ({}, REFUSED, ("refused", 429)),
        ({"outcome": "drained"}, REFUSED, ("drained", 429)),
        ({"headers_sent": True}, REFUSED, ("refused", 429)),
        ({"headers_sent": True, "outcome": "drained"}, REFUSED, ("drained", 200)),
        ({"cancel_reason": "gone", "headers_sent": True}, None, ("client_gone", 499)),
        ({"headers_sent": True}, None, ("gateway_error", 200)),
        ({}, None, ("gateway_error", 499)),
        ({"outcome": "upstream_error", "headers_sent": True}, None, ("upstream_error", 200)),
    ],
)
def test_outcome_and_status_of_a_request_that_was_not_completed(fields, refusal, ending):
    assert ledger_records.outcome_and_status(failed_request(**fields), refusal) == ending


@for_each(
    ("fields", "refusal", "error", "expected"),
    [
        ({}, None, None, ("", "", "")),
        ({}, REFUSED, LATE, ("rate_limit_error", "r" * 2_000, "gateway")),
        ({}, None, LATE, ("timeout_error", "m" * 2_000, "upstream")),
        *(
            ({"outcome": outcome}, None, LATE, ("timeout_error", "m" * 2_000, "gateway"))
            for outcome in ("drained", "gateway_error", "refused")
        ),
        ({"store_full": False}, None, LATE, ("timeout_error", "", "upstream")),
        ({"store_full": False}, REFUSED, None, ("rate_limit_error", "", "gateway")),
    ],
)
def test_the_error_that_the_client_received(fields, refusal, error, expected):
    assert ledger_records.client_error_of(failed_request(**fields), refusal, error) == expected


def test_days_are_counted_from_1970():
    assert [ledger_records.day_of(days) for days in (0, 1, 365)] == [
        date(1970, 1, 1), date(1970, 1, 2), date(1971, 1, 1)
    ]  # fmt: skip


class Prices:
    """Prices of one model on the third of January 1970."""

    def of_usage(self, *key):
        return {"input": "1"} if key == ("up", "m", date(1970, 1, 3), {}) else None


@for_each(
    ("target", "created", "price"),
    [
        ({"upstream": "up", "model": "m"}, 3 * 86_400.0, None),
        ({"upstream": "up", "model": "m"}, 2 * 86_400.0, {"input": "1"}),
        ({"upstream": "up", "model": "m"}, 3 * 86_400 - 0.001, {"input": "1"}),
        ({}, 2 * 86_400.0, None),
    ],
)
def test_the_price_is_the_one_of_the_day_of_acceptance(target, created, price):
    request = SimpleNamespace(created=created, prices=Prices())

    assert ledger_records.price_at(request, target, {}) == price
    is_listed = ("up", "m") in ledger_records.unpriced_models  # until it has one
    assert is_listed == (bool(target) and price is None)
    ledger_records.unpriced_models.clear()
