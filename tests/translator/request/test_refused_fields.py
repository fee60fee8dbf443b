"""What the gateway adds, keeps or chooses is left out or changed, in whatever words it is refused."""

import json

import pytest

from tests.for_each import for_each
from translator import openai_chat, openai_responses
from translator.capabilities import Profile
from translator.dialect import Lesson
from translator.request.body_edits import (
    EDITS,
    FIELDS,
    OMITTING,
    apply_lessons,
    capability_of,
)

TOOL = {"name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
PICTURE = {"type": "image_url", "image_url": {"url": "https://pictures.test/a.png"}}
CHAT_BODY = {
    "model": "m",
    "messages": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Go"}],
    "tools": [{"type": "function", "function": TOOL}],
    "parallel_tool_calls": False,
    "prompt_cache_key": "5f1a",
    "reasoning_effort": "xhigh",
    "safety_identifier": "77ab",
    "stream_options": {"include_usage": True},
    "temperature": 0.4,
    "top_p": 0.9,
}
SCHEMA = {"name": "structured_output", "schema": {"type": "object"}}
RESPONSES_BODY = {
    "model": "m",
    "store": False,
    "instructions": "Be brief.",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go"}]},
        {"type": "message", "role": "assistant", "content": "Going", "phase": "commentary"},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "B"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "On"}]},
    ],
    "include": ["web_search_call.action.sources", "reasoning.encrypted_content"],
    "reasoning": {"effort": "xhigh", "summary": "auto"},
    "tools": [{"type": "function", **TOOL}],
    "text": {"format": {"type": "json_schema", "strict": True, **SCHEMA}},
}


def error(message, param=None, code=None):
    return {"error": {"message": message, "type": "invalid_request_error", "param": param,
                      "code": code}}  # fmt: skip


def chat(refusal, status=400, **fields):
    return openai_chat.DIALECT.repair({**CHAT_BODY, **fields}, status, refusal)


def responses(refusal, status=400, **fields):
    return openai_responses.DIALECT.repair({**RESPONSES_BODY, **fields}, status, refusal)


@for_each(
    ("refusal", "fields"),
    [
        (error("Unknown parameter: 'prompt_cache_key'.", "prompt_cache_key", "unknown_parameter"),
         ["prompt_cache_key"]),
        (error("Unrecognized request argument supplied: prompt_cache_key"), ["prompt_cache_key"]),
        (error("Unrecognized request arguments supplied: prompt_cache_key, safety_identifier"),
         ["prompt_cache_key", "safety_identifier"]),
        (error('json: unknown field "parallel_tool_calls"'), ["parallel_tool_calls"]),
        (error("property 'safety_identifier' is unsupported"), ["safety_identifier"]),
        (error("got an unexpected keyword argument 'safety_identifier'"), ["safety_identifier"]),
        (error("1 validation error\nprompt_cache_key\n  Extra inputs are not permitted [type=x]"),
         ["prompt_cache_key"]),
        ({"detail": [
            {"loc": ["body", "prompt_cache_key"], "msg": "Extra inputs are not permitted"},
            {"loc": ["body", "safety_identifier"], "msg": "Extra inputs are not permitted"}]},
         ["prompt_cache_key", "safety_identifier"]),
        (error("tools[0].function.strict: unknown field"), ["tools[].function.strict"]),
        (error("Extra inputs are not permitted", "tools.0.function.strict"),
         ["tools[].function.strict"]),
        (error("stream_options is not allowed here"), ["stream_options"]),
        (error("This model has no such thing", "parallel_tool_calls"), ["parallel_tool_calls"]),
        (error("invalid temperature: only 1 is allowed for this model"), ["temperature"]),
        (error("`temperature` and `top_p` cannot both be specified"), ["temperature", "top_p"]),
        (error("This model does not support the effort parameter."), ["reasoning_effort"]),
        (error("Model ivy-2 does not support parameter reasoningEffort."), ["reasoning_effort"]),
        (error('"ivy:2b" does not support thinking'), ["reasoning_effort"]),
        ({"object": "error", "message": {"detail": [
            {"type": "extra_forbidden", "loc": ["body", "safety_identifier"], "msg": "Extra"
             " inputs are not permitted"}]}}, ["safety_identifier"]),
        ({"object": "error", "message": '{"detail": [{"loc": ["body", "stream_options",'
          ' "include_usage"], "msg": "Extra inputs are not permitted"}]}'}, ["stream_options"]),
        ({"title": "One or more validation errors occurred.", "errors": {
            "prompt_cache_key": ["The field is not supported."]}}, ["prompt_cache_key"]),
        ("unknown field `stream_options`, expected one of `model`, `messages`",
         ["stream_options"]),
    ],
)  # fmt: skip
def test_a_field_is_left_out_in_chat(refusal, fields):
    found = chat(refusal)

    assert [lesson.value for lesson in found.lessons] == fields
    assert {lesson.edit for lesson in found.lessons} <= OMITTING
    assert not any(f"'{name.rpartition('.')[2]}'" in str(found.body) for name in fields)
    again = openai_chat.DIALECT.repair(found.body, 400, refusal)
    assert again is None or not {*fields} & {lesson.value for lesson in again.lessons}
    assert apply_lessons({**CHAT_BODY}, found.lessons)[0] == found.body


@for_each(
    ("refusal", "lesson"),
    [
        (error("Unknown parameter: 'input[1].phase'.", "input[1].phase"), ("omit", "input[].phase")),
        (error("phase: Extra inputs are not permitted", "input.1.EasyInputMessage.phase"),
         ("omit", "input[].phase")),
        (error("Unrecognized request argument supplied: include"), ("omit", "include")),
        (error("Encrypted content is not supported with this model.", "include"),
         ("exclude", "reasoning.encrypted_content")),
        (error("Unsupported parameter: 'reasoning.effort'", "reasoning.effort"),
         ("omit", "reasoning.effort")),
        (error("Unknown parameter: 'reasoning'.", "reasoning"), ("omit", "reasoning")),
        (error("Unknown parameter: 'store'."), ("omit", "store")),
        (error("Invalid value: 'json_schema'. Supported values are: 'text' and 'json_object'.",
               "text.format.type", "invalid_value"), ("schema_as_prompt", "")),
    ],
)  # fmt: skip
def test_a_field_is_left_out_in_responses(refusal, lesson):
    found = responses(refusal)

    assert found.lessons == (lesson,)
    assert responses(refusal, 401) is None, "the key is wrong, whatever the words"


@for_each(
    ("words", "sent", "effort"),
    [
        ("'xhigh' is not supported. Supported values are: 'low', 'medium', and 'high'.", "xhigh",
         "high"),
        ("Input should be 'low', 'medium' or 'high'", "xhigh", "high"),
        ("Invalid enum value. Expected 'low' | 'medium', received 'high'", "high", "medium"),
        ("does not support 'none'. Supported values are: 'low', 'medium', and 'high'.", "none",
         "low"),
        ("must be one of `none` or `default`", "high", "none"),
        ("Invalid value: 'xhigh'.", "xhigh", "high"),
        ("Invalid value: 'none'.", "none", None),
        ("is not supported with this model.", "high", None),
        ('invalid reasoning value: "xhigh" (must be "high", "low", or "none")', "xhigh", "high"),
    ],
)  # fmt: skip
def test_a_refused_effort_is_lowered(words, sent, effort):
    in_chat = chat(error(f"Unsupported: {words}", "reasoning_effort"), reasoning_effort=sent)
    reasoning = {"effort": sent, "summary": "auto"}
    in_responses = responses(error(words, "reasoning.effort"), reasoning=reasoning)
    in_words = chat(error(f"reasoning_effort: {words}"), reasoning_effort=sent)

    assert in_chat.body.get("reasoning_effort") == effort
    assert in_responses.body["reasoning"].get("effort") == effort
    assert in_words.body.get("reasoning_effort") == effort
    later, *_ = apply_lessons({"reasoning_effort": "low"}, in_chat.lessons)
    assert later.get("reasoning_effort") == (None if effort is None and sent != "none" else
                                             "none" if effort == "none" else "low")  # fmt: skip


@for_each(
    "refusal",
    [
        error("'messages[0].role' does not support 'developer'", "messages[0].role"),
        error("developer is not one of ['system', 'assistant', 'user'] - 'messages.0.role'"),
        error("messages[0].role: unknown variant `developer`, expected one of `system`, `user`"),
        error("Unexpected message role."),
        {"detail": [{"loc": ["body", "messages", 0, "role"], "msg": "Input should be 'system'"}]},
        error("'messages.0' : discriminator property 'role' has invalid value"),
        error("Upstream request failed: [1214] Incorrect role information"),
    ],
)
def test_the_role_developer_becomes_system(refusal):
    found = chat(refusal)

    assert [message["role"] for message in found.body["messages"]] == ["system", "user"]
    assert found.lessons == (Lesson("system_for_developer"),)


FORCED = {"type": "function", "function": {"name": "look"}}


@for_each(
    ("choice", "refusal"),
    [
        (FORCED, error("Thinking mode does not support this tool_choice")),
        (FORCED, error("tool_choice 'specified' is incompatible with thinking enabled")),
        ("required", error("Only 'auto' and 'none' are supported", "tool_choice")),
        ("required", error("Thinking may not be enabled when tool_choice forces tool use.")),
        ("required", error('"required" tool choice requires a parser to be set')),
        (FORCED, error("Invalid tool_choice type: 'object'. Supported string values: none, auto")),
        (FORCED, error("type must be string, but is object")),
    ],
)
def test_a_forced_tool_choice_becomes_auto(choice, refusal):
    found = chat(refusal, tool_choice=choice)

    assert found.body["tool_choice"] == "auto"
    assert found.notes[0].lossy
    assert chat(error("tool_choice: 'look' not found in tools"), tool_choice=choice) is None


@for_each(
    "refusal",
    [
        error("This response_format type is unavailable now"),
        error("response_format.type must be 'text' or 'json_object'"),
        error("Structured outputs are not supported by this model"),
        error("This model does not support response format `json_schema`."),
        error("response_format value as json_schema is enabled only for later api versions"),
    ],
)
def test_a_schema_moves_to_the_prompt_and_then_json_mode_goes(refusal):
    form = {"type": "json_schema", "json_schema": SCHEMA}
    first = chat(refusal, response_format=form)
    second = openai_chat.DIALECT.repair(first.body, 400, refusal)

    assert first.body["response_format"] == {"type": "json_object"}
    assert first.body["messages"][0]["content"].endswith('schema: {"type":"object"}')
    assert "response_format" not in second.body
    both, *_ = apply_lessons({**CHAT_BODY, "response_format": form},
                            [*first.lessons, *second.lessons])  # fmt: skip
    assert both == second.body


def test_what_holds_while_a_model_reasons_does_not_hold_without():
    sampling = chat(error("Unsupported parameter: 'temperature'")).lessons
    choice = chat(error("Thinking mode does not support this tool_choice"),
                  tool_choice="required").lessons  # fmt: skip
    off = {**CHAT_BODY, "reasoning_effort": "none", "tool_choice": "required"}

    assert apply_lessons(off, [*sampling, *choice]) == (off, [], ())
    fixed, *_ = apply_lessons({**off, "reasoning_effort": "low"}, [*sampling, *choice])
    assert ("temperature" in fixed, fixed["tool_choice"]) == (False, "auto")
    always = chat(error("Unsupported parameter: 'temperature'"), reasoning_effort="none").lessons
    assert always == (("omit", "temperature"),)


@for_each(
    "text",
    [
        "Unsupported keyword patternProperties in JSON schema",
        "json mode cannot be combined with tool calling",
        "Function calling with a response mime type: 'application/json' is unsupported",
    ],
)
def test_one_client_s_schema_takes_schemas_from_nobody(text):
    form = {"type": "json_schema", "json_schema": SCHEMA}

    found = chat(error(text), response_format=form)

    assert found.body["response_format"] == {"type": "json_object"}
    assert found.lessons == ()


def test_a_long_name_of_a_tool_cuts_no_tools():
    tools = [{"type": "function", "function": {"name": f"t{n}"}} for n in range(90)]

    assert chat(error("tools: a name has at most 64 characters"), tools=tools) is None


def test_a_fault_in_the_client_s_schema_is_reported():
    fault = error("Invalid schema for response_format 'x': In context=()", "response_format")

    assert chat(fault, response_format={"type": "json_schema", "json_schema": SCHEMA}) is None


@for_each(
    "text",
    [
        "Invalid 'tools': array too long. Expected an array with maximum length 3, but got 9.",
        "'tools' : maximum number of items is 3",
        "Too many tools provided: 9. Maximum is 3.",
        "At most 3 functions may be given",
        "The tools length should be less than or equal to 3.",
    ],
)
def test_tools_are_cut_to_the_named_maximum_and_the_forced_one_stays(text):
    tools = [{"type": "function", "function": {"name": f"t{n}"}} for n in range(9)]
    choice = {"type": "function", "function": {"name": "t7"}}

    found = chat(error(text), tools=tools, tool_choice=choice)

    assert [tool["function"]["name"] for tool in found.body["tools"]] == ["t0", "t1", "t7"]
    assert chat(error("Too many tools"), tools=tools) is None, "no maximum is named"


@for_each(
    "text",
    [
        "At most 2 image(s) may be provided",
        "Too many images: this takes up to 2",
        "too many images and documents: 4 + 0 > 2",
        "Too much media: 0 document pages + 4 images > 2",
    ],
)
def test_the_oldest_images_go_first(text):
    messages = [{"role": "user", "content": [PICTURE, {"type": "text", "text": str(n)}]}
                for n in range(4)]  # fmt: skip

    found = chat(error(text), messages=messages)

    kept = ["image_url" in str(message) for message in found.body["messages"]]
    assert kept == [False, False, True, True]


FILE = {
    "type": "file",
    "file": {"filename": "plan.pdf", "file_data": "data:application/pdf;base64,JV"},
}


@for_each(
    ("refusal", "lessons"),
    [
        (error("Invalid value: file. Supported values are: 'text','image_url' and 'video'."), 1),
        (error("file uploads are not supported"), 1),
        (error("Unknown part type: file"), 1),
        (error("unsupported content[].type"), 1),
        (error("Failed to parse plan.pdf"), 0),
        (error("The document could not be read. It may be password protected."), 0),
    ],
)
def test_files_become_a_text_and_a_damaged_one_says_nothing_about_others(refusal, lessons):
    content = [FILE, {"type": "text", "text": "Read it."}]

    found = chat(refusal, messages=[{"role": "user", "content": content}])

    text = found.body["messages"][0]["content"]
    assert (text.startswith("[file omitted"), text.endswith("Read it.")) == (True, True)
    assert found.notes[0].lossy
    assert found.lessons == (Lesson("files_as_text"),) * lessons
    assert chat(refusal) is None, "no file was sent"


@for_each(
    "refusal",
    [
        error("string too long. Expected a string with maximum length 1024, but got length 2000",
              "tools[0].function.description"),
        error("Member must have length less than or equal to 1024: toolSpec.description"),
        {"detail": [{"loc": ["body", "tools", 0, "function", "description"],
                     "msg": "String should have at most 1024 characters"}]},
        error("'dd' is too long - 'tools.0.function.description'"),
    ],
)  # fmt: skip
def test_descriptions_are_cut_to_the_named_length(refusal):
    tools = [{"type": "function", "function": {"name": "t", "description": "d" * 2_000}}]

    found = chat(refusal, tools=tools)

    assert len(found.body["tools"][0]["function"]["description"]) == 1_024


@for_each(
    ("status", "refusal"),
    [
        (400, error("Item 'rs_1' of type 'reasoning' was provided without its required following"
                    " item.")),
        (404, error("Item with id 'rs_1' not found. Items are not persisted.")),
        (400, error("Item 'fc_1' was provided without its required 'reasoning' item: 'rs_1'.")),
        (400, error("The encrypted content for item rs_1 could not be verified.")),
        (400, error("Bad request", code="invalid_encrypted_content")),
        (401, error("input item ID does not belong to this connection")),
        (404, error("", code="not_found")),
        (400, error("Duplicate item found with id rs_1.", "input")),
        (400, error("Invalid 'input[0].id': string too long.", "input[0].id")),
        (400, error("Invalid type for 'input[0]': reasoning items are not supported")),
    ],
)  # fmt: skip
def test_refused_reasoning_is_stripped_and_not_remembered(status, refusal):
    items = [
        {"type": "reasoning", "id": "rs_1", "encrypted_content": "gAAA"},
        {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "look", "arguments": "{}"},
    ]

    found = responses(refusal, status, input=items)

    call = {name: value for name, value in items[1].items() if name != "id"}
    assert found.body["input"] == [call]
    assert found.lessons == ()


# Chat templates behind the Responses API

CALL = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "seen"}


@for_each(
    ("text", "roles"),
    [
        ("System message must be at the beginning.", ["user", "assistant", "user"]),
        ("System role not supported", ["user", "assistant", "user"]),
        ("Conversation roles must alternate user/assistant", ["user", "assistant", "user"]),
    ],
)
def test_system_text_moves_to_the_start_of_responses_input(text, roles):
    found = responses(error(text))

    assert [item["role"] for item in found.body["input"]] == roles
    whole = f"{found.body.get('instructions')} {found.body['input'][0]}"
    assert "Be brief." in whole
    assert "B" in whole.replace("Be brief.", "")


def test_items_are_merged_and_calls_become_text():
    user = RESPONSES_BODY["input"][0]
    refusal = error("Conversation roles must alternate user/assistant")

    merged = responses(refusal, input=[user, user, CALL, OUTPUT, user])
    as_text = openai_responses.DIALECT.repair(merged.body, 400, refusal)

    assert len(merged.body["input"]) == 3
    assert merged.body["input"][-1]["output"] == "seen\n\nGo"
    assert [item["role"] for item in as_text.body["input"]] == ["user", "assistant", "user"]


def test_parallel_calls_of_items_follow_each_other():
    second = [{**CALL, "call_id": "d"}, {**OUTPUT, "call_id": "d"}]

    found = responses(
        error("This model only supports single tool-calls at once!"),
        input=[CALL, second[0], OUTPUT, second[1]],
    )

    assert [item["call_id"] for item in found.body["input"]] == ["c", "c", "d", "d"]


# Words that the client wrote

PHRASES = [
    "image input is not supported",
    "Unrecognized request argument supplied: prompt_cache_key",
    "System role not supported",
    "This model only supports single tool-calls at once!",
    "Conversation roles must alternate user/assistant/user/assistant",
    "Unsupported parameter: 'temperature'",
    "This response_format type is unavailable now",
    "At most 1 image(s) may be provided",
    "reasoning_effort 'xhigh' is not supported",
    "Thinking mode does not support this tool_choice",
    "developer is not one of ['system', 'user']",
    "file uploads are not supported",
    "this model does not support thinking",
    "Vision is not supported here",
    "too many images and documents: 4 + 0 > 1",
    "max_completion_tokens must be less than 2048 at most 2048",
]


def _spoken_by_a_client(phrase: str):
    """Yield bodies in which a client has written a phrase, and what a server echoes of it."""
    url = f"https://pictures.test/{phrase}.png"
    picture = {"type": "image_url", "image_url": {"url": url}}
    encoded = url.replace(" ", "%20")
    yield (
        {"messages": [{"role": "user", "content": [picture, PICTURE, FILE]}]},
        f"cannot load {url}",
    )
    yield {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": encoded}}, PICTURE]}]}, f"cannot load {url}"  # fmt: skip
    yield {"messages": [{"role": "user", "content": [
        {"type": "text", "text": f"Please translate: {phrase}. Thank you."}, PICTURE]}]}, (
        f"bad text (Please translate: {phrase}. Thank you.)")  # fmt: skip
    schema = {"type": "object", "properties": {phrase: {}}, "description": phrase}
    tools = [{"type": "function", "function": {"name": "t", "parameters": schema}}]
    yield {"tools": tools, "messages": [{"role": "user", "content": [PICTURE]}]}, (
        f"schema fault near {phrase}")  # fmt: skip


@pytest.mark.parametrize("phrase", PHRASES)
def test_an_echo_of_the_client_s_text_repairs_nothing(phrase):
    own = {"response_format": {"type": "json_schema", "json_schema": SCHEMA},
           "tool_choice": "required", "max_completion_tokens": 4_000}  # fmt: skip
    assert chat(error(phrase), **own, messages=[
        {"role": "developer", "content": "s"},
        {"role": "user", "content": [PICTURE, PICTURE, FILE]},
        {"role": "user", "content": "b"},
        {"role": "assistant", "tool_calls": [
            {"id": i, "function": {"name": "f", "arguments": "{}"}} for i in "12"]},
    ]) is not None, "the server's own words do"  # fmt: skip
    for fields, echo in _spoken_by_a_client(phrase):
        for text in (echo, f'"{echo}"', echo.upper(), f"Error: {echo}"):
            assert chat(error(text), **{**own, **fields}) is None, text


def test_a_path_into_the_client_s_schema_names_no_field():
    for path in ("tools[0].function.parameters.properties.strict", "text.format.schema.phase"):
        fault = error("Unknown parameter", path, "unknown_parameter")
        assert chat(fault) is None
        assert responses(fault) is None


def test_every_lesson_has_its_capability():
    capabilities = {capability_of(Lesson("omit", path)) for path in FIELDS}
    capabilities |= {capability_of(Lesson(edit)) for edit in EDITS}

    assert capabilities - {""} <= {*Profile.__dataclass_fields__}
    assert apply_lessons({"model": "m"}, [Lesson("unknown", "x")]) == ({"model": "m"}, [], ())


GEMINI = (
    "Function call is missing a thought_signature in functionCall parts. This is required for tools"
    " to work correctly. Additional data, function call `default_api:look` , position 2."
)


def test_gemini_behind_another_server_gets_marked_calls_after_its_refusal():
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    own = {**call, "extra_content": {"google": {"thought_signature": "own"}}}
    turns = [
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "assistant", "content": None, "tool_calls": [own]},
    ]
    nested = f"litellm.BadRequestError: Vertex_aiException - {json.dumps({'error': {'message': GEMINI}})}"

    for text in (GEMINI, nested):
        found = chat(error(text), messages=turns)

        assert found.lessons == (Lesson("sign_calls", ""),)
        first, second = found.body["messages"]
        assert first["tool_calls"][0]["extra_content"]["google"]["thought_signature"] == (
            "skip_thought_signature_validator"
        )
        assert first["tool_calls"][0]["provider_specific_fields"]["thought_signature"]
        assert first["tool_calls"][1] == call
        assert second == turns[1]
