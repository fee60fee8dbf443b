import pytest

from translator.anthropic.shapes import (
    MAX_ECHO,
    Fault,
    anything,
    boolean,
    either,
    integer,
    list_by,
    list_of,
    mapping,
    number,
    one_of,
    shape,
    shortened,
    string,
    tagged,
    words,
)

BY_KIND = list_by("kind", {"a": mapping}, shape({"kind": string}))
OR_TEXT = list_by("kind", {}, mapping, or_text=True)


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (anything, [None, 1, {}], []),
        (boolean, [True, False], [0, "true", None]),
        (either(string, mapping), ["", {}], [1, None]),
        (integer(1), [1, 5], [0, True, 1.0, "1"]),
        (list_of(string), [[], ["a"]], [["a", 1], "a", {}]),
        (mapping, [{}], [[], None]),
        (number(0, 1), [0, 0.5, 1], [1.1, -1, True, "0"]),
        (one_of("a", "b"), ["a"], ["c", ["a"], None]),
        (string, [""], [None, b""]),
        (OR_TEXT, ["", "a", [{}]], [[1], 1]),
        (BY_KIND, [[], [{"kind": "a"}]], ["", {}, ["a"], [{}], [{"kind": []}]]),
        (words, ["a"], ["", 1]),
    ],
)
def test_what_each_check_takes(check, good, bad):
    for value in good:
        check(value)
    for value in bad:
        with pytest.raises(Fault):
            check(value)


def no_twins(value):
    if value.get("a") == value.get("b"):
        raise Fault("twins", "b")


PAIR = shape({"a": string}, {"b": list_of(string), "c": OR_TEXT}, no_twins)


@pytest.mark.parametrize(
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
def test_a_fault_names_the_way_to_it(value, path, message):
    with pytest.raises(Fault) as caught:
        PAIR(value)

    assert (caught.value.path, caught.value.message) == (path, message)


def test_a_shape_takes_nulls_for_what_is_optional_and_fields_it_does_not_know():
    PAIR({"a": "x", "b": None, "new": 1})


def test_a_shape_looks_at_the_whole_last():
    same = shape({"a": string}, {"b": string}, no_twins)

    with pytest.raises(Fault, match="twins"):
        same({"a": "x", "b": "x"})


@pytest.mark.parametrize(
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
def test_a_tag_decides_the_shape(value, path, message):
    with pytest.raises(Fault) as caught:
        tagged({"b": anything, "a": shape({"x": string})})(value)

    assert (caught.value.path, caught.value.message) == (path, message)


@pytest.mark.parametrize("check", [words, either(mapping, words)])
def test_what_must_have_words_may_be_null_where_it_is_optional_and_empty_nowhere(check):
    for kind in ("optional", "required"):
        shape(**{kind: {"a": check}})({"a": "x"})
        with pytest.raises(Fault, match="at least 1 character"):
            shape(**{kind: {"a": check}})({"a": ""})
    shape(optional={"a": check})({"a": None})
    with pytest.raises(Fault, match="valid string"):
        shape({"a": check})({"a": None})


def test_messages_do_not_repeat_whole_prompts():
    assert shortened("a" * MAX_ECHO) == "a" * MAX_ECHO
    assert shortened("a" * (MAX_ECHO + 1)) == "a" * MAX_ECHO + "…"
