import pytest

from tests.for_each import for_each
from translator.anthropic.validators import (
    MAX_ECHO,
    ValidationFault,
    any_of,
    any_value,
    boolean,
    integer,
    list_by_key,
    list_of,
    mapping,
    non_empty_string,
    number,
    object_of,
    one_of,
    shorten,
    string,
    tagged_union,
)

BY_KIND = list_by_key("kind", {"a": mapping}, object_of({"kind": string}))
OR_TEXT = list_by_key("kind", {}, mapping, or_text=True)


@for_each(
    ("check", "good", "bad"),
    [
        (any_value, [None, 1, {}], []),
        (boolean, [True, False], [0, "true", None]),
        (any_of(string, mapping), ["", {}], [1, None]),
        (integer(1), [1, 5], [0, True, 1.0, "1"]),
        (list_of(string), [[], ["a"]], [["a", 1], "a", {}]),
        (mapping, [{}], [[], None]),
        (number(0, 1), [0, 0.5, 1], [1.1, -1, True, "0"]),
        (one_of("a", "b"), ["a"], ["c", ["a"], None]),
        (string, [""], [None, b""]),
        (OR_TEXT, ["", "a", [{}]], [[1], 1]),
        (BY_KIND, [[], [{"kind": "a"}]], ["", {}, ["a"], [{}], [{"kind": []}]]),
        (non_empty_string, ["a"], ["", 1]),
    ],
)
def test_each_validator_accepts_its_values(check, good, bad):
    for value in good:
        check(value)
    for value in bad:
        with pytest.raises(ValidationFault):
            check(value)


def reject_equal_values(value):
    if value.get("a") == value.get("b"):
        raise ValidationFault("twins", "b")


PAIR = object_of({"a": string}, {"b": list_of(string), "c": OR_TEXT}, reject_equal_values)


@for_each(
    ("value", "path", "message"),
    [
        ([], [], "Input should be an object"),
        ({"b": None}, ["a"], "Field required"),
        ({"a": None}, ["a"], "Input should be a valid string"),
        ({"a": "x", "b": ["y", 2]}, ["b", "1"], "Input should be a valid string"),
        ({"a": "x", "b": "y"}, ["b"], "Input should be a valid list"),
        ({"a": "x", "c": 5}, ["c"], "Input should be a valid list"),
    ],
)
def test_an_error_names_its_path(value, path, message):
    with pytest.raises(ValidationFault) as caught:
        PAIR(value)

    assert (caught.value.path, caught.value.message) == (path, message)


def test_an_object_accepts_null_for_optional_and_unknown_fields():
    PAIR({"a": "x", "b": None, "new": 1})


def test_the_whole_object_check_runs_last():
    same = object_of({"a": string}, {"b": string}, reject_equal_values)

    with pytest.raises(ValidationFault, match="twins"):
        same({"a": "x", "b": "x"})


@for_each(
    ("value", "path", "message"),
    [
        ("x", [], "Input should be an object"),
        ({}, ["type"], "Field required"),
        ({"type": 5}, ["type"], "Input should be a valid string"),
        ({"type": None}, ["type"], "Input should be a valid string"),
        (
            {"type": "c"},
            ["type"],
            "Input tag 'c' does not match any of the expected tags: 'a', 'b'",
        ),
        ({"type": "a"}, ["x"], "Field required"),
    ],
)
def test_the_type_field_selects_the_validator(value, path, message):
    with pytest.raises(ValidationFault) as caught:
        tagged_union({"b": any_value, "a": object_of({"x": string})})(value)

    assert (caught.value.path, caught.value.message) == (path, message)


@for_each("check", [non_empty_string, any_of(mapping, non_empty_string)])
def test_required_text_may_be_null_if_optional_but_never_empty(check):
    for kind in ("optional", "required"):
        object_of(**{kind: {"a": check}})({"a": "x"})
        with pytest.raises(ValidationFault, match="at least 1 character"):
            object_of(**{kind: {"a": check}})({"a": ""})
    object_of(optional={"a": check})({"a": None})
    with pytest.raises(ValidationFault, match="valid string"):
        object_of({"a": check})({"a": None})


def test_messages_do_not_repeat_whole_prompts():
    assert shorten("a" * MAX_ECHO) == "a" * MAX_ECHO
    assert shorten("a" * (MAX_ECHO + 1)) == "a" * MAX_ECHO + "…"
