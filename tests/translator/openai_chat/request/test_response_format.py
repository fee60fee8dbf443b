"""Structured outputs."""

from tests.fakes.anthropic_requests import make_request
from tests.translator.openai_chat.requests import body, fates

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


def json_schema_of(profile, schema=REQUIRED):
    return body(make_request(output_config=demanded(schema)), profile)["response_format"][
        "json_schema"
    ]


def test_a_schema_gets_the_name_that_the_upstream_demands():
    assert json_schema_of("generic") == {"name": "structured_output", "schema": REQUIRED}


def test_the_old_field_is_an_alias_that_loses_to_the_new_one():
    old = make_request(output_format={"type": "json_schema", "schema": REQUIRED})

    assert body(old) == body(make_request(output_config=demanded()))
    assert body(old | {"output_config": demanded(OPTIONAL)}) == body(
        make_request(output_config=demanded(OPTIONAL))
    )


def test_optional_properties_become_nullable_and_the_schema_stays_strict():
    assert json_schema_of("openai")["strict"] is True
    assert json_schema_of("openai", OPTIONAL)["strict"] is True


def test_a_server_without_schemas_receives_the_schema_in_the_prompt():
    request = make_request(output_config=demanded(), system="Be brief.")

    built = body(request, "deepseek")

    assert built["response_format"] == {"type": "json_object"}
    assert built["messages"][0]["content"].startswith("Be brief.\n\nAnswer with one JSON object")
    assert fates(request, "deepseek") == {"output_config.format": "emulated"}


def test_effort_alone_sets_no_response_format():
    assert "response_format" not in body(make_request(output_config={"effort": "low"}))
