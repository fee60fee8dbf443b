"""Structured outputs: the schema that goes out, and the answer in the client's own form."""

import json
from typing import Any

from tests.fakes.anthropic_requests import make_request
from tests.for_each import for_each
from translator import openai_chat, openai_responses
from translator.capabilities import PROFILES
from translator.dialect import TranslationTarget
from translator.message_stream.events_to_message import fold

DIALECTS = {"chat": openai_chat.DIALECT, "responses": openai_responses.DIALECT}
STRING: dict[str, Any] = {"type": "string"}
CITY = {
    "type": "object",
    "properties": {"city": STRING, "n": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
CLOSED = {**CITY, "required": ["city", "n"]}
CITIES = {"type": "array", "items": CITY}
TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "type": "array",
            "items": {"anyOf": [{"$ref": "#/$defs/tree"}, {"$ref": "#"}, STRING]},
        }
    },
}


def built(schema, dialect, profile="openai", name="output_config"):
    output_format = {"type": "json_schema", "schema": schema}
    field = {"format": output_format} if name == "output_config" else output_format
    target = TranslationTarget(upstream="u", model="m", profile=PROFILES[profile])
    return DIALECTS[dialect].build_request(make_request(**{name: field}), target)


def format_of(made, dialect):
    if dialect == "responses":
        return made.body["text"]["format"]
    return made.body["response_format"]["json_schema"]


def stream_of(pieces, dialect, *, end="stop"):
    """Return the upstream's events for a text in pieces."""
    if dialect == "chat":
        chunks = [{"delta": {"content": piece}, "finish_reason": None} for piece in pieces]
        chunks.append({"delta": {}, "finish_reason": end})
        return [{"id": "c", "choices": [{"index": 0, **chunk}]} for chunk in chunks]
    item = {"id": "m1", "type": "message", "role": "assistant", "content": []}
    place = {"item_id": "m1", "output_index": 0, "content_index": 0}
    text = {"type": "output_text", "text": "".join(pieces), "annotations": []}
    cut = {"incomplete_details": {"reason": "max_output_tokens"}} if end == "length" else {}
    status = "incomplete" if cut else "completed"
    response = {"id": "r", "status": status, "output": [{**item, "content": [text]}], **cut}
    return [
        {"type": "response.created", "response": {"id": "r"}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        *({"type": "response.output_text.delta", "delta": piece, **place} for piece in pieces),
        {"type": "response.output_text.done", "text": text["text"], **place},
        {"type": f"response.{status}", "response": response},
    ]


def answered(schema, pieces, dialect, **end):
    """Return the text that the client gets, from a stream."""
    stream = DIALECTS[dialect].stream(built(schema, dialect).response_context)
    events = [each for event in stream_of(pieces, dialect, **end) for each in stream.feed(event)]
    message = fold(events + stream.end())
    return "".join(block["text"] for block in message["content"])


@for_each("dialect", DIALECTS)
@for_each(
    ("schema", "wrapped", "optional", "strict"),
    [
        (CLOSED, False, set(), True),
        (CITY, False, {"n"}, True),
        (CITIES, True, {"value/*/n"}, True),
        ({"type": "array", "items": STRING}, True, set(), True),
        ({"anyOf": [CLOSED, STRING]}, True, set(), True),
        ({"oneOf": [CLOSED, {"type": "null"}]}, True, set(), True),
        ({"enum": ["a", "b"]}, True, set(), True),
        ({"type": "string"}, True, set(), True),
        ({"type": ["object", "null"], **{k: v for k, v in CLOSED.items() if k != "type"}},
         True, set(), True),
        ({"$ref": "#/$defs/a", "$defs": {"a": CITIES}}, True, {"value/*/n"}, True),
        ({"$ref": "#/$defs/a", "$defs": {"a": CITY}}, False, {"n"}, True),
        (TREE, True, set(), False),
        ({"type": "object", "additionalProperties": STRING}, False, set(), False),
        ({"allOf": [CLOSED]}, False, set(), False),
        ({}, False, set(), True),
    ],
)  # fmt: skip
def test_the_schema_is_an_object_and_strict_where_possible(
    schema, wrapped, optional, strict, dialect
):
    before = json.dumps(schema)

    made = built(schema, dialect)

    sent = format_of(made, dialect)
    form = made.response_context.answer
    assert sent["schema"]["type"] == "object"
    assert sent["strict"] is strict
    assert (bool(form and form.wrapped), set(form.optional) if form else set()) == (
        wrapped, optional,
    )  # fmt: skip
    fates = {note.fate for note in made.notes if note.path == "output_config.format"}
    assert ("emulated" in fates, "dropped" in fates) == (wrapped or bool(optional), not strict)
    assert json.dumps(schema) == before


def test_references_to_the_root_follow_it():
    sent = format_of(built(TREE, "chat", "vllm"), "chat")["schema"]

    assert sent["properties"]["value"] == {"$ref": "#/$defs/tree"}
    assert sent["$defs"]["tree"]["items"]["anyOf"][:2] == [
        {"$ref": "#/$defs/tree"}, {"$ref": "#/properties/value"},
    ]  # fmt: skip


def test_a_list_is_wrapped_for_servers_of_every_kind():
    for profile in PROFILES:
        made = built(CITIES, "chat", profile, "output_format")

        assert made.response_context.answer.wrapped
    prompt = built(CITIES, "chat", "deepseek").body["messages"][0]["content"]
    assert '"required":["value"]' in prompt


@for_each("dialect", DIALECTS)
@for_each(
    ("schema", "upstream", "client"),
    [
        (CITY, '{"city": "Oslo", "n": null}', '{"city":"Oslo"}'),
        (CITY, '{"city": "Oslo", "n": 3}', '{"city": "Oslo", "n": 3}'),
        (CLOSED, '{"city": "Oslo", "n": null}', '{"city": "Oslo", "n": null}'),
        (CITIES, '{"value": [{"city": "Ås", "n": null}, {"city": "B", "n": 1}]}',
         '[{"city":"Ås"},{"city":"B","n":1}]'),
        (CITIES, ' {"value":[]}\\n', "[]"),
        ({"enum": ["a"]}, '{"value": "a"}', '"a"'),
        ({"anyOf": [CLOSED, {"type": "null"}]}, '{"value": null}', "null"),
        # A server that ignores the schema, and a refusal in words.
        (CITIES, '[{"city": "Oslo"}]', '[{"city":"Oslo"}]'),
        (CITIES, '{"city": "Oslo"}', '{"city": "Oslo"}'),
        (CITIES, "I cannot help with that.", "I cannot help with that."),
        (CITY, "I cannot help with that.", "I cannot help with that."),
        (CITIES, '{"value": ["\\ud83d\\ude00"]}', '["😀"]'),
    ],
)  # fmt: skip
def test_the_answer_has_the_clients_form(schema, upstream, client, dialect):
    upstream = upstream.replace("\\n", "\n")

    assert answered(schema, [upstream], dialect) == client
    assert answered(schema, list(upstream), dialect) == client


@for_each("dialect", DIALECTS)
def test_a_truncated_answer_loses_only_the_start_of_its_wrapper(dialect):
    pieces = ['{"val', 'ue": [{"city": ', '"Os']

    assert answered(CITIES, pieces, dialect, end="length") == '[{"city": "Os'
    assert answered(CITY, ['{"city": "Os'], dialect, end="length") == '{"city": "Os'


@for_each("dialect", DIALECTS)
def test_a_schema_that_stays_as_it_is_streams_as_it_comes(dialect):
    made = built(CLOSED, dialect)
    stream = DIALECTS[dialect].stream(made.response_context)

    events = [each for event in stream_of(list("[1]"), dialect) for each in stream.feed(event)]

    assert made.response_context.answer is None
    assert sum(event["type"] == "content_block_delta" for event in events) == 3
