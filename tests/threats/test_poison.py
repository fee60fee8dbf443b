"""Values that one serialiser carries and the next refuses: none may stop the ledger's one thread.

A header of an upstream may hold any byte, and a model may say a number of any size.
"""

import json

import pytest

from proxy.models import Exchange
from proxy.record import transcripts
from proxy.record.drainer import Source, drain
from proxy.record.records import decode, encode
from proxy.record.spool import Spool
from tests.fakes.steps import json_answer
from tests.proxy.gateway import scripts
from tests.proxy.gateway.conftest import message, row
from tests.proxy.record.conftest import source, spool, team  # noqa: F401 - fixtures
from tests.proxy.record.making import answer, body, closing, exchange_id, opening

BIG = 10**40
VALUES = {
    "a number beyond 64 bits": BIG,
    "a negative one": -BIG,
    "a lone surrogate": "a\ud800b",
    "the first half of a pair": "\udbff",
    "a NUL": "a\x00b",
    "what looks like a tag": {"type": "close", "id": "req_0"},
    "deep": json.loads("[" * 90 + "]" * 90),
    "infinity": float("inf"),
    "not a number": float("nan"),
    "a line separator": "\u2028\u0085\x1b[2J",
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_every_record_can_be_written_and_read(value):
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
def test_no_value_stops_the_spool_or_the_drainer(spool: Spool, source: Source, team, value):  # noqa: F811
    said = {"type": "tool_use", "id": "t", "name": "n", "input": {"x": value}}
    records = [
        opening(1, user_agent=str(value), body=body("hi", metadata={"x": str(value).replace("\ud800", "?").replace("\udbff", "?")})),
        opening(2),
        closing(1, error_message=str(value), answer=answer("x") | {"content": [said]}),
        closing(2),
    ]  # fmt: skip

    for record in records:
        spool.append(record)
    for _ in drain(source):
        pass

    assert Exchange.objects.filter(state="closed", pk=exchange_id(2)).exists()
    assert Exchange.objects.filter(state="closed", pk=exchange_id(1)).exists()
    assert transcripts.read(exchange_id(1)) is not None


@pytest.mark.parametrize("number", [BIG, -BIG, 2**64, -(2**63) - 1])
@pytest.mark.parametrize("ask", [{"stream": True}, {}])
def test_a_number_of_any_size_in_a_tools_arguments_passes(gateway, scripted, number, ask):
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "t", "arguments": f'{{"n": {number}}}'},
    }
    said = {"choices": [{"index": 0, "finish_reason": "tool_calls",
                         "message": {"role": "assistant", "tool_calls": [call]}}]}  # fmt: skip
    scripted.on("chat-big-number", json_answer(said))
    tool = {"name": "t", "input_schema": {"type": "object", "maximum": number}}

    reply = gateway.post(message("chat-big-number", tools=[tool], **ask))

    assert reply.status == 200
    assert str(number).encode() in reply.body
    row(reply.id, outcome="completed")
    scripted.on("chat-after", scripts.chat())
    row(gateway.post(message("chat-after")).id, outcome="completed")
