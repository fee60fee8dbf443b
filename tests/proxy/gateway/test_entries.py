"""What a row says of a request, part by part; how it comes to be is told by other tests."""

from datetime import date
from types import SimpleNamespace

import pytest

from proxy.gateway import entries, unpriced
from proxy.gateway.refusals import Refusal
from translator.anthropic.usage import Usage
from translator.dialect import UpstreamError
from translator.notes import Note

LATE = UpstreamError(status=504, error_type="timeout_error", message="m" * 3_000)


@pytest.mark.parametrize(
    ("metadata", "session"),
    [
        (None, ""),
        ({}, ""),
        ({"user_id": 7}, ""),
        ({"user_id": "ada"}, ""),
        ({"user_id": "user_1_account__session_0123abcd-0000"}, "0123abcd-0000"),
        ({"user_id": "user_1_session_0123abc"}, ""),  # too short for one
        ({"user_id": "user_1_session_0123abcd and more"}, ""),
        ({"user_id": '{"session_id": "s_1", "device_id": "d"}'}, "s_1"),
        ({"user_id": '{"session_id": "' + "s" * 200 + '"}'}, "s" * 200),
        ({"user_id": '{"session_id": "' + "s" * 201 + '"}'}, ""),
        ({"user_id": '{"session_id": 7}'}, ""),
        ({"user_id": "{}"}, ""),
        ({"user_id": "{"}, ""),
        ("user_1_session_0123abcd-0000", ""),
    ],
)
def test_claude_code_names_its_session_in_two_shapes(metadata, session):
    assert entries.session_in(metadata) == session


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (Usage(), 0),
        (Usage(input=1, output=20), 21),
        (Usage(input=1, output=20, cache_write_5m=300, cache_write_1h=4_000), 4_321),
        (Usage(input=1, output=20, cache_read=9, reasoning=9), 21),  # read: free; reasoning: output
    ],
)
def test_what_counts_against_a_limit_of_tokens(usage, tokens):
    assert entries._total(usage) == tokens


@pytest.mark.parametrize(
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
def test_tools_and_thinking_of_an_answer(content, tools, thought):
    message = None if content is None else {"content": content}

    assert entries._content(message) == (tools, thought)


def test_a_note_keeps_its_words_where_words_are_kept():
    note = Note("model", "ignored", "no price for 'opus' and 'x'")

    kept, hidden = ([*entries._notes([note], words=words)] for words in (True, False))

    assert kept == [{"path": "model", "fate": "ignored", "reason": "no price for 'opus' and 'x'"}]
    assert hidden == [{"path": "model", "fate": "ignored", "reason": "no price for '…' and '…'"}]


@pytest.mark.parametrize(
    ("reasons", "fault", "detail"),
    [
        ([], None, ""),
        (["it is odd"], None, ""),
        (["it is odd", "bad_usage: input", "bad_event: x"], "why", "bad_usage"),
        (["bad_" + "x" * 300], None, "bad_" + "x" * 196),
        ([], "why", "bad_event"),
    ],
)
def test_the_cause_in_one_word(reasons, fault, detail):
    notes = [Note("p", "ignored", reason) for reason in reasons]

    assert entries._detail(SimpleNamespace(notes=notes, fault=fault)) == detail
    assert entries._detail(None) == ""


def exchange(
    *, begun=False, unheard=None, stopped=None, outcome="", store_full=True
) -> SimpleNamespace:
    """What is looked at of an exchange that did not end well."""
    consumer = SimpleNamespace(begun=begun, unheard_from=unheard, stopped=stopped)
    team = SimpleNamespace(store_full=store_full)
    caller = SimpleNamespace(team=team)
    return SimpleNamespace(consumer=consumer, outcome=outcome, caller=caller)


REFUSED = Refusal(429, "rate_limit_error", "r" * 3_000, source="gateway")


@pytest.mark.parametrize(
    ("fields", "refusal", "ending"),
    [
        ({"unheard": 7, "begun": True, "outcome": "drained"}, REFUSED, ("client_gone", 499)),
        ({}, REFUSED, ("refused", 429)),
        ({"outcome": "drained"}, REFUSED, ("drained", 429)),
        ({"begun": True}, REFUSED, ("refused", 429)),
        ({"begun": True, "outcome": "drained"}, REFUSED, ("drained", 200)),
        ({"stopped": "gone", "begun": True}, None, ("client_gone", 499)),
        ({"begun": True}, None, ("gateway_error", 200)),
        ({}, None, ("gateway_error", 499)),
        ({"outcome": "upstream_error", "begun": True}, None, ("upstream_error", 200)),
    ],
)
def test_outcome_and_status_of_what_did_not_end_well(fields, refusal, ending):
    assert entries._ending(exchange(**fields), refusal) == ending


@pytest.mark.parametrize(
    ("fields", "refusal", "error", "told"),
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
def test_the_error_that_the_client_was_told(fields, refusal, error, told):
    assert entries._fault(exchange(**fields), refusal, error) == told


def test_days_are_counted_from_1970():
    assert [entries.day_of(days) for days in (0, 1, 365)] == [
        date(1970, 1, 1), date(1970, 1, 2), date(1971, 1, 1)
    ]  # fmt: skip


class Prices:
    """Prices of one model on the third of January 1970."""

    def at(self, *asked):
        return {"input": "1"} if asked == ("up", "m", date(1970, 1, 3)) else None


@pytest.mark.parametrize(
    ("target", "created", "price"),
    [
        ({"upstream": "up", "model": "m"}, 3 * 86_400.0, None),
        ({"upstream": "up", "model": "m"}, 2 * 86_400.0, {"input": "1"}),
        ({"upstream": "up", "model": "m"}, 3 * 86_400 - 0.001, {"input": "1"}),
        ({}, 2 * 86_400.0, None),
    ],
)
def test_the_price_is_that_of_the_day_on_which_it_was_accepted(target, created, price):
    asked = SimpleNamespace(created=created, prices=Prices())

    assert entries._price(asked, target) == price
    assert ("up m" in unpriced.names()) == (bool(target) and price is None)  # until it has one
    unpriced.forget("up", "m")
