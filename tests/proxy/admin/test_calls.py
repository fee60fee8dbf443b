"""A tool call is shown as people read it, and nothing of its input is left out."""

import json

import pytest

from proxy.admin.calls import readable


@pytest.mark.parametrize(
    ("name", "given", "shown"),
    [
        ("Bash", {"command": "ls -la\npwd"}, "$ ls -la\npwd"),
        ("Read", {"file_path": "/a.py"}, "/a.py"),
        (
            "Edit",
            {"file_path": "/a.py", "old_string": "a = 1\nb = 2", "new_string": "a = 1"},
            "/a.py\n- a = 1\n- b = 2\n+ a = 1",
        ),
        ("Edit", {"file_path": "/a.py", "old_string": "x", "new_string": ""}, "/a.py\n- x"),
        ("Write", {"file_path": "/a.py", "content": "one\ntwo\n"}, "/a.py\n+ one\n+ two\n+ "),
    ],
)
def test_it_is_laid_out_as_its_tool_says(name, given, shown):
    assert readable(name, given) == shown


@pytest.mark.parametrize("name", ["Bash", "Read", "Edit", "Write"])
def test_what_the_layout_does_not_name_follows_as_json(name):
    given = {"command": "a", "file_path": "b", "old_string": "c", "new_string": "d", "content": "e"}
    more = {"timeout": 5000, "deep": {"é": [None]}}

    shown = readable(name, given | more)

    assert all(value in shown for value in given.values())
    assert more.items() <= json.loads(shown[shown.index("\n\n{") :]).items()


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("mcp__tiles__render", {"command": "x"}),
        ("Bash", {"command": ["x"]}),
        ("Bash", {}),
        ("Bash", None),
        ("Bash", "x"),
        ("Edit", {"file_path": "a", "old_string": None, "new_string": "b"}),
        ("Write", {"file_path": 5, "content": "b"}),
        ("Read", {"file_path": {}}),
    ],
)
def test_another_shape_is_left_to_json(name, given):
    assert readable(name, given) is None
