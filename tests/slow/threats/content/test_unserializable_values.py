"""Values that one serializer accepts and the next rejects: none may stop the drainer thread.

An upstream's header may contain any byte, and a model may return a number of any size.
"""

import json

import pytest

from proxy.ledger.journal.journal import Journal
from proxy.ledger.journal.reader import JournalReader
from proxy.ledger.journal.records import decode, encode
from proxy.ledger.posting.journal_posting import post_all
from proxy.ledger.transcripts import storage
from proxy.models import Exchange
from tests.fakes.upstreams.script_steps import json_response
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import message, row
from tests.proxy.ledger.conftest import journal, own, team  # noqa: F401 - fixtures
from tests.proxy.ledger.factories import answer, body, closing, exchange_id, opening

BIG = 10**40
VALUES = {
    "a number beyond 64 bits": BIG,
    "a negative one": -BIG,
    "an unpaired low surrogate": "a\ud800b",
    "an unpaired high surrogate": "\udbff",
    "a NUL": "a\x00b",
    "an object like a record": {"type": "close", "id": "req_0"},
    "deep": json.loads("[" * 90 + "]" * 90),
    "infinity": float("inf"),
    "not a number": float("nan"),
    "a line separator": "\u2028\u0085\x1b[2J",
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_every_record_can_be_encoded_and_decoded(value):
    text = str(value)
    for record in (
        opening(1, user_agent=text, tags={text: text}, target={"x": value}),
        closing(1, upstream_request_id=text, attempts=[{"error": text, "ms": value}],
                answer=answer("x") | {"content": [{"type": "tool_use", "input": {text: value}}]}),
    ):  # fmt: skip
        again = decode(encode(record))

        assert type(again) is type(record)
        assert again.id == record.id


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_no_value_stops_the_journal_or_the_drainer(
    journal: Journal,  # noqa: F811
    own: JournalReader,  # noqa: F811
    team,  # noqa: F811
    value,
):
    tool_call = {"type": "tool_use", "id": "t", "name": "n", "input": {"x": value}}
    records = [
        opening(1, user_agent=str(value), body=body("hi", metadata={"x": str(value).replace("\ud800", "?").replace("\udbff", "?")})),
        opening(2),
        closing(1, error_message=str(value), answer=answer("x") | {"content": [tool_call]}),
        closing(2),
    ]  # fmt: skip

    for record in records:
        journal.append_and_wait(record)
    for _ in post_all(own):
        pass

    assert Exchange.objects.filter(state="closed", pk=exchange_id(2)).exists()
    assert Exchange.objects.filter(state="closed", pk=exchange_id(1)).exists()
    assert storage.read(exchange_id(1)) is not None


@pytest.mark.parametrize("number", [BIG, -BIG, 2**64, -(2**63) - 1])
@pytest.mark.parametrize("fields", [{"stream": True}, {}])
def test_large_number_in_tool_arguments_is_passed_on(gateway, scripted, number, fields):
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "t", "arguments": f'{{"n": {number}}}'},
    }
    tool_call = {"choices": [{"index": 0, "finish_reason": "tool_calls",
                         "message": {"role": "assistant", "tool_calls": [call]}}]}  # fmt: skip
    scripted.on("chat-big-number", json_response(tool_call))
    tool = {"name": "t", "input_schema": {"type": "object", "maximum": number}}

    reply = gateway.post(message("chat-big-number", tools=[tool], **fields))

    assert reply.status == 200
    assert str(number).encode() in reply.body
    row(reply.id, outcome="completed")
    scripted.on("chat-after", upstream_scripts.chat())
    row(gateway.post(message("chat-after")).id, outcome="completed")
