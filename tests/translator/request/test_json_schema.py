import json

from hypothesis import given
from hypothesis import strategies as st

from tests.for_each import for_each
from translator.request.json_schema import (
    MAX_BRANCHES,
    MAX_PROPERTIES,
    MAX_STRICT_DEPTH,
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
        ({"required": "a"}, {"type": "object", "properties": {}}),
        ({"required": [1]}, {"type": "object", "properties": {}}),
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
                "properties": {
                    "a": STRING,
                    "b": {"anyOf": [STRING, {"type": "integer"}]},
                    "c": STRING,
                },
                "description": "Required is one of these sets of properties: a, b; b; none.",
            },
        ),
        (
            {"allOf": [{"properties": {"a": STRING}, "required": ["a"]}, {"required": ["b"]}]},
            {"type": "object", "properties": {"a": STRING}, "required": ["a"]},
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
        nested(MAX_STRICT_DEPTH + 1),
    ],
)
def test_what_has_no_strict_form(schema):
    assert to_strict(schema) is None


def test_the_deepest_and_the_empty_schema_have_a_strict_form():
    assert to_strict(nested(MAX_STRICT_DEPTH)) is not None
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


ARRAY = {"type": "array"}
FULL = {"type": "array", "items": {}}


@for_each(
    ("inner", "made", "repair"),
    [
        (ARRAY, FULL, "an array without items"),
        ({"type": ["array", "null"]}, {"type": ["array", "null"], "items": {}},
         "an array without items"),
        ({"type": "array", "items": ARRAY}, {"type": "array", "items": FULL},
         "an array without items"),
        ({"anyOf": [ARRAY, STRING]}, {"anyOf": [FULL, STRING]}, "an array without items"),
        ({"allOf": [{"oneOf": [ARRAY]}]}, {"allOf": [{"oneOf": [FULL]}]},
         "an array without items"),
        ({"type": "array", "prefixItems": [ARRAY]},
         {"type": "array", "prefixItems": [FULL], "items": {}}, "an array without items"),
        ({"additionalProperties": ARRAY}, {"additionalProperties": FULL},
         "an array without items"),
        ({"patternProperties": {"^x": ARRAY}}, {"patternProperties": {"^x": FULL}},
         "an array without items"),
        ({"if": ARRAY, "then": {"not": ARRAY}}, {"if": FULL, "then": {"not": FULL}},
         "an array without items"),
        ({"type": "array", "items": [STRING, FULL]},
         {"type": "array", "items": {"anyOf": [STRING, FULL]}}, "a list as items"),
        ({"type": "array", "items": []}, FULL, "a list as items"),
        ({"type": "array", "items": True}, FULL, "a schema that is no object"),
        ({"type": "string", "enum": []}, STRING, "an invalid enum"),
        ({"enum": ["a", "b", "a", [1], [1]]}, {"enum": ["a", "b", [1]]}, "an invalid enum"),
        ({"type": "string", "required": True}, STRING, "an invalid required"),
        ({"properties": {"a": STRING}, "required": ["a", "b"]},
         {"properties": {"a": STRING}, "required": ["a"]}, "an invalid required"),
        ({"properties": {"a": STRING}, "required": ["b"]}, {"properties": {"a": STRING}},
         "an invalid required"),
        ({"properties": None}, {}, "an invalid properties"),
        ({"anyOf": []}, {}, "an invalid union"),
        ({"type": "any"}, {}, "an invalid type"),
        ({"type": None}, {}, "an invalid type"),
        ({"type": ["string", "file"]}, {"type": ["string"]}, "an invalid type"),
        ({"$ref": "#/$defs/gone", "description": "d"}, {"description": "d"},
         "a reference to nothing"),
        ({"$ref": "https://example.org/schema"}, {}, "a reference to nothing"),
        ({"type": "string", "pattern": r"^\\p{L}+$"}, STRING, "an invalid pattern"),
        (True, {}, "a schema that is no object"),
        (False, {"not": {}}, "a schema that is no object"),
        (None, {}, "a schema that is no object"),
    ],
)  # fmt: skip
def test_what_openai_refuses_is_repaired_at_any_depth(inner, made, repair):
    for schema, place in (
        ({"type": "object", "properties": {"x": inner}}, ("properties", "x")),
        ({"properties": {"x": {"type": "object", "properties": {"y": inner}}}},
         ("properties", "x", "properties", "y")),
        ({"$defs": {"x": inner}, "properties": {}}, ("$defs", "x")),
    ):  # fmt: skip
        repairs = {}
        before = json.dumps(schema)

        found = normalize(schema, repairs)

        for step in place:
            found = found[step]
        assert (found, list(repairs)) == (made, [repair])
        assert json.dumps(schema) == before


@for_each(
    "inner",
    [
        {"type": "object", "required": ["a"], "anyOf": [{"properties": {"a": STRING}}]},
        {"properties": {"b": STRING}, "oneOf": [{"required": ["b"]}]},
        {"const": ARRAY, "default": ARRAY, "examples": [ARRAY], "enum": [ARRAY]},
        {"properties": {"type": STRING, "items": STRING, "enum": STRING}},
        {"$ref": "#/$defs/a~1b/anyOf/0"},
        {"$ref": "#"},
        {"additionalProperties": False, "unevaluatedProperties": True},
        {"enum": [1, True, "1", None]},
        {"type": "string", "pattern": "^(?=a)(?:b)$"},
    ],
)
def test_valid_schemas_stay_the_same_object(inner):
    definitions = {"a/b": {"anyOf": [STRING]}}
    schema = {"type": "object", "properties": {"x": inner}, "$defs": definitions}
    repairs = {}

    made = normalize(schema, repairs)

    assert (made, repairs) == (schema, {})
    assert made["properties"] is schema["properties"]


def test_a_deep_schema_ends_the_repair():
    schema = {}
    for _ in range(800):
        schema = {"items": schema}

    assert normalize({"properties": {"x": schema}})["properties"]["x"] is schema


@for_each(
    ("union", "properties", "description"),
    [
        (
            [{"properties": {"kind": {"const": "a"}}, "required": ["kind"]},
             {"properties": {"kind": {"const": "b"}, "n": STRING}, "required": ["kind", "n"]}],
            {"kind": {"anyOf": [{"const": "a"}, {"const": "b"}]}, "n": STRING},
            "d\n\nRequired is one of these sets of properties: kind; kind, n.",
        ),
        (
            [{"properties": {"a": STRING}, "required": ["a"]},
             {"properties": {"a": STRING}, "required": ["a"]}],
            {"a": STRING},
            "d",
        ),
    ],
)  # fmt: skip
@for_each("combiner", ["anyOf", "oneOf"])
def test_a_union_at_the_root_keeps_what_its_branches_say(combiner, union, properties, description):
    repairs = {}

    made = normalize({"type": "object", "description": "d", combiner: union}, repairs)

    assert (made["properties"], made["description"]) == (properties, description)
    assert list(repairs) == ["a union at its root"]
