import json

from hypothesis import given
from hypothesis import strategies as st

from tests.for_each import for_each
from translator.request.json_schema import (
    MAX_BRANCHES,
    MAX_DEPTH,
    MAX_PROPERTIES,
    escape_name,
    normalize,
    to_strict,
)

STRING = {"type": "string"}
SCHEMAS = st.recursive(
    st.none()
    | st.booleans()
    | st.text(max_size=3)
    | st.sampled_from(["object", "string", "#", "#/$defs/a", "array"])
    | st.just(STRING),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("type", "properties", "required", "items", "enum", "const", "not"),
                    *("anyOf", "oneOf", "allOf", "$ref", "$defs", "a", "b"),
                    "additionalProperties",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


def fits(schema: object) -> None:
    """Return whether the whole schema obeys OpenAI's rules of strict mode."""
    assert isinstance(schema, dict)
    assert "$ref" not in schema
    for branch in schema.get("anyOf", []):
        fits(branch)
    if "object" in (schema.get("type") or ""):
        assert schema["additionalProperties"] is False
        assert schema["required"] == list(schema["properties"])
        for inner in schema["properties"].values():
            fits(inner)
    if "array" in (schema.get("type") or ""):
        fits(schema["items"])


@given(schema=SCHEMAS)
def test_whatever_a_client_sends_the_root_is_an_object(schema):
    before = json.dumps(schema)
    made = normalize(schema)

    assert made["type"] == "object"
    assert isinstance(made["properties"], dict)
    assert not made.keys() & {"anyOf", "oneOf", "allOf", "enum", "not", "$ref", "$schema"}
    assert json.dumps(schema) == before
    assert json.dumps(normalize(made)) == json.dumps(made)


@given(schema=SCHEMAS)
def test_a_strict_schema_obeys_the_rules_or_does_not_exist(schema):
    made = to_strict(schema)

    if made is not None:
        fits(made.schema)


@for_each(
    ("schema", "made"),
    [
        (None, {"type": "object", "properties": {}}),
        ({}, {"type": "object", "properties": {}}),
        (
            {"type": ["object", "null"], "properties": {"a": STRING}, "required": ["a"]},
            {"type": "object", "properties": {"a": STRING}, "required": ["a"]},
        ),
        (
            {"$schema": "x", "$id": "y", "$comment": "z", "type": "object", "description": "d"},
            {"type": "object", "description": "d", "properties": {}},
        ),
        (
            {"properties": {"a": STRING, "b": STRING}, "required": ["b", 1, "a", "b"]},
            {"properties": {"a": STRING, "b": STRING}, "required": ["b", "a"], "type": "object"},
        ),
        ({"required": "a"}, {"required": ["a"], "type": "object", "properties": {}}),
        ({"required": [1]}, {"required": [1], "type": "object", "properties": {}}),
        (
            {"properties": {"$id": STRING, "$comment": STRING}},
            {"properties": {"$id": STRING, "$comment": STRING}, "type": "object"},
        ),
        (
            {
                "anyOf": [
                    {"properties": {"a": STRING, "b": STRING}, "required": ["a", "b"]},
                    {"properties": {"b": {"type": "integer"}, "c": STRING}, "required": ["b"]},
                    True,
                ]
            },
            {
                "type": "object",
                "properties": {"a": STRING, "b": STRING, "c": STRING},
                "required": ["b"],
            },
        ),
        (
            {"allOf": [{"properties": {"a": STRING}, "required": ["a"]}, {"required": ["b"]}]},
            {"type": "object", "properties": {"a": STRING}, "required": ["a", "b"]},
        ),
    ],
)
def test_normalise(schema, made):
    assert normalize(schema) == made


def test_a_reference_at_the_root_is_resolved():
    definitions = {
        "a": {"properties": {"x": STRING}, "required": ["x"]},
        "b": {"$ref": "#/$defs/a"},
    }

    made = normalize({"$ref": "#/$defs/b", "$defs": definitions})

    assert (made["properties"], made["required"]) == ({"x": STRING}, ["x"])
    assert made["$defs"] == definitions


@for_each(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 9}}},
        {"$ref": "https://elsewhere"},
        {"$ref": 5},
        {"anyOf": [{"properties": {}}] * (2 * MAX_BRANCHES)},
    ],
)
def test_circular_schemas_terminate(schema):
    assert normalize(schema)["properties"] == {}


@for_each("enum", [None, "x", {}])
def test_a_schema_with_an_invalid_enum_has_no_strict_form(enum):
    assert to_strict({"type": "object", "properties": {"a": {"enum": enum}}}) is None


def test_strict_makes_everything_required_and_the_optional_nullable():
    made = to_strict(
        {
            "type": "object",
            "description": "d",
            "required": ["a"],
            "properties": {
                "a": {"type": "string", "format": "date", "minLength": 3, "default": "x"},
                "b": STRING,
                "c": {"enum": ["x", "y"]},
                "d": {"const": 1},
                "e": {"anyOf": [STRING, {"type": "integer"}]},
                "f": {"type": ["string", "null"]},
                "g": {"oneOf": [STRING, {"type": "null"}]},
                "h": {"type": "array", "items": {"type": "object", "properties": {"x/y": STRING}}},
                "i": {"$ref": "#/$defs/inner", "description": "lost"},
            },
            "$defs": {"inner": {"type": "object", "properties": {"z": STRING}, "required": ["z"]}},
        }
    )

    assert made is not None
    assert made.schema["properties"] == {
        "a": STRING,
        "b": {"type": ["string", "null"]},
        "c": {"enum": ["x", "y", None]},
        "d": {"anyOf": [{"const": 1}, {"type": "null"}]},
        "e": {"anyOf": [STRING, {"type": "integer"}, {"type": "null"}]},
        "f": {"type": ["string", "null"]},
        "g": {"anyOf": [STRING, {"type": "null"}]},
        "h": {
            "type": ["array", "null"],
            "items": {
                "type": "object",
                "properties": {"x/y": {"type": ["string", "null"]}},
                "required": ["x/y"],
                "additionalProperties": False,
            },
        },
        "i": {
            "type": ["object", "null"],
            "properties": {"z": STRING},
            "required": ["z"],
            "additionalProperties": False,
        },
    }
    assert made.optional == {"b", "c", "d", "e", "h", "h/*/x~1y", "i"}
    assert made.schema["required"] == list("abcdefghi")
    assert made.schema["description"] == "d"


def nested(levels: int) -> dict:
    return STRING if levels == 0 else {"type": "object", "properties": {"a": nested(levels - 1)}}


@for_each(
    "schema",
    [
        None,
        {"anyOf": []},
        {"type": "string"},
        {"type": 5},
        {"type": "object", "properties": {"a": {"type": "text"}}},
        {"type": "object", "additionalProperties": True},
        {"type": "object", "additionalProperties": STRING},
        {"type": "object", "properties": 5},
        {"type": "object", "patternProperties": {}},
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {"a": {"type": "object"}}},
        {"type": "object", "properties": {"a": {"allOf": [STRING]}}},
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}},
        {"type": "object", "properties": {"a": {"$ref": 5}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "properties": {str(n): STRING for n in range(MAX_PROPERTIES + 1)}},
        {"type": "object", "properties": {"a": {"anyOf": [STRING] * (MAX_PROPERTIES + 1)}}},
        nested(MAX_DEPTH + 1),
    ],
)
def test_what_has_no_strict_form(schema):
    assert to_strict(schema) is None


def test_the_deepest_and_the_empty_schema_have_a_strict_form():
    assert to_strict(nested(MAX_DEPTH)) is not None
    empty = to_strict(
        {"type": "object", "properties": {"a": {"type": "object", "additionalProperties": False}}}
    )
    assert empty is not None
    assert to_strict({}).schema == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }


def test_names_in_paths_are_escaped():
    assert escape_name("a/b~c") == "a~1b~0c"
