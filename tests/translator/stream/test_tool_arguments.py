import json

from hypothesis import given
from hypothesis import strategies as st

from tests.for_each import for_each
from translator.stream.tool_arguments import (
    MAX_DEPTH,
    compact_json,
    is_unclosed,
    parse_arguments,
    without_nulls,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=5)


@given(value=OBJECTS, indent=st.sampled_from([None, 2]))
def test_an_object_is_parsed_and_not_repaired(value, indent):
    assert parse_arguments(json.dumps(value, indent=indent)) == (value, False)


@given(value=OBJECTS)
def test_python_s_spelling_is_repaired(value):
    assert parse_arguments(repr_of(value))[0] == value


def repr_of(value) -> str:
    """Python's literals, in the part of its escapes that JSON knows as well."""
    match value:
        case dict():
            return "{" + ", ".join(f"{repr_of(k)}: {repr_of(v)}" for k, v in value.items()) + ",}"
        case list():
            return "[" + ", ".join(map(repr_of, value)) + (",]" if value else "]")
        case str():
            return "'" + json.dumps(value)[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"
        case True | False | None:
            return str(value)
        case _:
            return json.dumps(value)


@given(value=OBJECTS.filter(bool), cut=st.integers(1, 10_000))
def test_truncated_arguments_are_never_completed(value, cut):
    text = json.dumps(value)
    text = text[: cut % len(text)] or "{"

    assert parse_arguments(text) == (text, True)


@given(text=st.text(alphabet="{}[]\":,\\'TrueNonels0123.eE+- \n"))
def test_whatever_it_is_the_answer_is_an_object_or_the_raw_string(text):
    value, repaired = parse_arguments(text)

    assert isinstance(value, dict) or (value, repaired) == (text, True)
    json.loads(compact_json(value))


@for_each(
    ("text", "value", "repaired"),
    [
        ("", {}, False),
        (" \n", {}, False),
        ("null", {}, False),
        ("{}", {}, False),
        ('{"a":1,}', {"a": 1}, True),
        ('{"a":[1,2,],}', {"a": [1, 2]}, True),
        ('{"a":"x\ny"}', {"a": "x\ny"}, True),
        ("{'a': True, 'b': None, \"c\": False}", {"a": True, "b": None, "c": False}, True),
        ("{'it': 'isn\\'t \"so\"'}", {"it": 'isn\'t "so"'}, True),
        ('{"True": "None, }"}', {"True": "None, }"}, False),
        ('{"a":"True,]",}', {"a": "True,]"}, True),
        ('"{\\"a\\":1}"', {"a": 1}, True),
        ('"plain"', {"value": "plain"}, True),
        ("[1]", {"value": [1]}, True),
        ("5", {"value": 5}, True),
        ('{"a":"b', '{"a":"b', True),
        ("{'a': 'b", "{'a': 'b", True),
        ('{"a":1}{"a":1}', {"a": 1}, True),
        ('{"a":1}{"a": 1}\n{"a":1}', {"a": 1}, True),
        ('{"a":1}{"a":2}', '{"a":1}{"a":2}', True),
        ('{"a":NaN}', '{"a":NaN}', True),
        ('{"a":1e999}', '{"a":1e999}', True),
        ("{'a': '\\x41'}", "{'a': '\\x41'}", True),
        ("[1,]", "[1,]", True),
        ("Trueish", "Trueish", True),
        ('{"a":1}</tool_call>', {"a": 1}, True),
        ('{"a":1}\n```\n', {"a": 1}, True),
        ('```json\n{"a":1}\n```', {"a": 1}, True),
        ('<tool_call>{"a":"</tool_call>"}</tool_call>', {"a": "</tool_call>"}, True),
        ('{"a":1}<|im_end|>', {"a": 1}, True),
        ('{"a":1} {}', {"a": 1}, True),
        ('{"a":1},', {"a": 1}, True),
        ('{"a":1}}', {"a": 1}, True),
        ("{'a': True,}</tool_call>", {"a": True}, True),
        ('{"a":1} and more', {"a": 1}, True),
        ('{"a":1}\n\nI\'ll look it up.', {"a": 1}, True),
        ('{"a":1}[/TOOL_CALLS]', {"a": 1}, True),
        ('{"a":1}<\uff5ctool_call_end\uff5c>', {"a": 1}, True),
        ('\ufeff{"a":1}', {"a": 1}, True),
        ('{"a":"echo "}" done"}', '{"a":"echo "}" done"}', True),
        ("{a:1} and more", "{a:1} and more", True),
        ('{"a":1}{"b":1}', '{"a":1}{"b":1}', True),
        ('{"a":1</tool_call>', '{"a":1</tool_call>', True),
    ],
)
def test_what_upstreams_write(text, value, repaired):
    assert parse_arguments(text) == (value, repaired)


def test_deep_nesting_remains_a_string():
    deep = '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1)
    wide = '{"a":[' + ",".join(["[]"] * (MAX_DEPTH + 1)) + "]}"

    assert parse_arguments(deep) == (deep, True)
    assert parse_arguments(wide) == (json.loads(wide), False)


@for_each("text", ['{"a":"' + '\\"' * 50_000, "{'" * 50_000, "," + " " * 100_000])
def test_hostile_text_takes_linear_time(text):
    assert parse_arguments(text) == (text, True)


@for_each("text", ["[" * 6_000_000, '{"a":' + "[" * 6_000_000, "'" * 3_000_000])
def test_long_broken_arguments_are_not_searched_for_repairs(text):
    assert parse_arguments(text) == (text, True)


def test_arguments_are_written_compactly_and_in_their_own_script():
    assert compact_json({"a": [1, "é"]}) == '{"a":[1,"é"]}'


def test_only_nulls_of_properties_that_were_optional_are_removed():
    value = {"a": None, "b": None, "c": {"d": None, "e": [{"f": None}, {"f": 1}]}, "x/y": None}

    assert without_nulls(value, {"a", "c/d", "c/e/*/f", "x~1y"}) == {
        "b": None,
        "c": {"e": [{}, {"f": 1}]},
    }


@for_each(
    ("text", "unclosed"),
    [
        ('{"a": "b', True),
        ('{"a": "b\\"', True),
        ('{"a": {"b": 1}', True),
        ('{"a": [1', True),
        ("{", True),
        ('{"a": 1}', False),
        ('{"a": "{["}', False),
        ('{"a": 1}}', False),
        ("{city", False),  # no JSON at all, so nothing shows that it is truncated
        ("Oslo", False),
        ("", False),
    ],
)
def test_truncated_arguments_end_inside_of_the_object(text, unclosed):
    assert is_unclosed(text) == unclosed
