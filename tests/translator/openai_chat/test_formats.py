"""Structured outputs."""

from tests.translator.openai_chat.requests import body, fates
from tests.translator.requests import ask

REQUIRED = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
OPTIONAL = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "additionalProperties": False,
}


def demanded(schema=REQUIRED):
    return {"format": {"type": "json_schema", "schema": schema}}


def wanted(profile, schema=REQUIRED):
    return body(ask(output_config=demanded(schema)), profile)["response_format"]["json_schema"]


def test_a_schema_gets_the_name_that_the_upstream_demands():
    assert wanted("generic") == {"name": "structured_output", "schema": REQUIRED}


def test_the_old_field_is_an_alias_that_loses_to_the_new_one():
    old = ask(output_format={"type": "json_schema", "schema": REQUIRED})

    assert body(old) == body(ask(output_config=demanded()))
    assert body(old | {"output_config": demanded(OPTIONAL)}) == body(
        ask(output_config=demanded(OPTIONAL))
    )


def test_strict_only_where_no_property_would_come_back_as_null():
    assert wanted("openai")["strict"] is True
    assert wanted("openai", OPTIONAL)["strict"] is False


def test_a_server_without_schemas_is_told_in_the_prompt():
    request = ask(output_config=demanded(), system="Be brief.")

    built = body(request, "deepseek")

    assert built["response_format"] == {"type": "json_object"}
    assert built["messages"][0]["content"].startswith("Be brief.\n\nAnswer with one JSON object")
    assert fates(request, "deepseek") == {"output_config.format": "emulated"}


def test_effort_alone_demands_no_format():
    assert "response_format" not in body(ask(output_config={"effort": "low"}))
