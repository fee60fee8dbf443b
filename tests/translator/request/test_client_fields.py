"""What servers of Anthropic's API other than Anthropic's own refuse of the client's fields."""

from typing import Any

from tests.for_each import for_each
from translator import anthropic_upstream
from translator.dialect import Lesson
from translator.request.body_edits import has_field
from translator.request.retry_repairs import COMPATIBLE_RULES, repair_by

repair = repair_by(COMPATIBLE_RULES)
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h", "scope": "global"}}
CALL = {"type": "tool_use", "id": "t", "name": "look", "input": {}, "caller": {"type": "direct"}}
SCHEMA = {"type": "object", "properties": {"sky": {"type": "string"}}}
BODY: dict[str, Any] = {
    "model": "m",
    "max_tokens": 500,
    "system": [{"type": "text", "text": "Be kind.", **CACHED}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Look.", **CACHED}]},
        {"role": "assistant", "content": [CALL]},
    ],
    "tools": [{"name": "look", "input_schema": SCHEMA, "eager_input_streaming": True}],
    "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
    "thinking": {"type": "adaptive", "display": "omitted"},
    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": SCHEMA}},
    "metadata": {"user_id": "u"},
    "service_tier": "auto",
    "safeguards": {"a": 1},
    "inference_geo": "eu",
    "next_year": True,
}


def refusal(text: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": text}}


EXTRA = "Extra inputs are not permitted"


@for_each(
    ("text", "path"),
    [
        (f"context_management: {EXTRA}", "context_management"),
        ("context_management is not supported by this model", "context_management"),
        (f"metadata: {EXTRA}", "metadata"),
        ("Unsupported parameter: metadata", "metadata"),
        ('json: unknown field "thinking"', "thinking"),
        ("unknown field `service_tier`, expected one of `model`, `metadata`", "service_tier"),
        (f"thinking.adaptive.display: {EXTRA}", "thinking.display"),
        (f"system.0.cache_control.ephemeral.scope: {EXTRA}", "system[].cache_control.scope"),
        (f"tools.0.custom.eager_input_streaming: {EXTRA}", "tools[].eager_input_streaming"),
        (f"messages.1.content.0.tool_use.caller: {EXTRA}", "messages[].content[].caller"),
        (f"messages.0.content.0.text.cache_control.ephemeral.ttl: {EXTRA}",
         "messages[].content[].cache_control.ttl"),
    ],
)  # fmt: skip
def test_an_unknown_field_is_left_out_and_remembered(text, path):
    repaired = repair(BODY, 400, refusal(text))

    assert repaired.lessons == (Lesson("omit_client_field", path),)
    assert has_field(BODY, path)
    assert not has_field(repaired.body, path)
    assert [note.path for note in repaired.notes] == [path.replace("[]", "")]
    # Anthropic's own errors go to the client
    assert anthropic_upstream.DIALECT.repair(BODY, 400, refusal(text)) is None


def test_pydantic_s_places_are_read_too():
    fault = {"type": "extra_forbidden", "loc": ["body", "output_config"], "msg": EXTRA}

    repaired = repair(BODY, 422, {"detail": [fault]})

    assert repaired.lessons == (
        Lesson("format_as_prompt"),
        Lesson("omit_client_field", "output_config"),
    )
    assert "output_config" not in repaired.body
    assert '"sky"' in repaired.body["system"][-1]["text"]


@for_each("system", [None, "Be kind.", [{"type": "text", "text": "Be kind."}]])
def test_a_refused_schema_of_the_answer_goes_into_the_system_prompt(system):
    body = {**BODY, "system": system} if system else {n: BODY[n] for n in BODY if n != "system"}

    repaired = repair(body, 400, refusal(f"output_config.format: {EXTRA}"))

    assert repaired.body["output_config"] == {"effort": "high"}
    assert '"sky"' in repaired.body["system"][-1]["text"]
    assert len(repaired.body["system"]) == (2 if system else 1)


@for_each(
    ("text", "name"),
    [
        ("thinking: Input tag 'adaptive' found using 'type' does not match any of: 'disabled'",
         "thinking"),
        ("thinking.type: Input should be 'enabled' or 'disabled'", "thinking"),
        (f"thinking.novelty: {EXTRA}", "thinking"),
        ("thinking is not supported by this model with effort", "thinking"),
        (f"next_year: {EXTRA}", "next_year"),
        (f"context_management.edits.0.clear_thinking_20251015.keep: {EXTRA}", "context_management"),
    ],
)  # fmt: skip
def test_a_value_or_a_name_of_the_client_teaches_nothing(text, name):
    repaired = repair(BODY, 400, refusal(text))

    assert repaired.lessons == ()
    assert repaired.body == {n: BODY[n] for n in BODY if n != name}
    assert repaired.notes[0].path == name


@for_each(
    "text",
    [
        f"safeguards: {EXTRA}",
        f"inference_geo: {EXTRA}",
        f"max_tokens: {EXTRA}",
        "metadata.user_id: String should have at most 256 characters",
        "messages.0.content.0.text.text: Input should be a valid string",
        "prompt is too long: 9 tokens > 5 maximum",
    ],
)
def test_what_has_a_meaning_for_the_answer_is_the_client_s_to_hear(text):
    assert repair(BODY, 400, refusal(text)) is None


def test_words_of_the_client_are_no_refusal():
    quoted = f"context_management: {EXTRA} by the server"
    body = {**BODY, "messages": [{"role": "user", "content": quoted}]}

    assert repair(body, 400, refusal(quoted)) is None
