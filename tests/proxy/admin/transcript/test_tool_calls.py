"""The text of tool inputs: layouts of known tools, without any loss of input."""

import json

import pytest

from proxy.admin.transcript.tool_calls import format_tool_input


@pytest.mark.parametrize(
    ("name", "tool_input", "shown"),
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
def test_known_tools_have_their_own_layout(name, tool_input, shown):
    assert format_tool_input(name, tool_input) == shown


@pytest.mark.parametrize("name", ["Bash", "Read", "Edit", "Write"])
def test_other_fields_follow_as_json(name):
    tool_input = {
        "command": "a",
        "file_path": "b",
        "old_string": "c",
        "new_string": "d",
        "content": "e",
    }
    more = {"timeout": 5000, "deep": {"é": [None]}}

    shown = format_tool_input(name, tool_input | more)

    assert all(value in shown for value in tool_input.values())
    assert more.items() <= json.loads(shown[shown.index("\n\n{") :]).items()


@pytest.mark.parametrize(
    ("name", "tool_input"),
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
def test_unexpected_input_has_no_layout(name, tool_input):
    assert format_tool_input(name, tool_input) is None
