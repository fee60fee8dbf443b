import pytest

from tests.for_each import for_each
from translator.anthropic.content_blocks import BLOCKS_BY_ROLE, MESSAGES
from translator.anthropic.validators import ValidationFault

IMAGE = {"type": "image", "source": {"type": "url", "url": "https://x"}}
TEXT = {"type": "text", "text": "x"}

GOOD = {
    "compaction": {"content": "short"},
    "container_upload": {"file_id": "f"},
    "document": {"source": {"type": "text", "data": "x", "media_type": "text/plain"}},
    "image": {"source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
    "mcp_tool_result": {"tool_use_id": "m", "content": "x"},
    "mcp_tool_use": {"id": "m", "name": "n", "input": {}, "server_name": "s"},
    "redacted_thinking": {"data": "x"},
    "search_result": {"source": "s", "title": "t", "content": [TEXT]},
    "server_tool_use": {"id": "s", "name": "web_search", "input": {}},
    "text": {"text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    "thinking": {"thinking": "", "signature": "x"},
    "tool_addition": {"tool": {"name": "x"}},
    "tool_removal": {"tool": {"name": "x"}},
    "tool_result": {"tool_use_id": "t", "content": [TEXT, IMAGE], "is_error": None},
    "tool_use": {"id": "t", "name": "n", "input": "{raw"},
}
"""A valid block of each type; other types need a ``tool_use_id`` and content."""


@for_each(
    ("role", "kind"), [(role, kind) for role, kinds in BLOCKS_BY_ROLE.items() for kind in kinds]
)
def test_every_block_is_accepted_in_its_roles(role, kind):
    block = {"type": kind, **GOOD.get(kind, {"tool_use_id": "s", "content": {}})}

    MESSAGES([{"role": role, "content": [block]}])


@for_each(
    ("value", "path", "words"),
    [
        ("x", [], "an object"),
        ({}, ["role"], "Field required"),
        ({"role": "tool", "content": ""}, ["role"], "one of 'user', 'assistant', 'system'"),
        ({"role": ["user"], "content": ""}, ["role"], "one of"),
        ({"role": "user"}, ["content"], "Field required"),
        ({"role": "user", "content": None}, ["content"], "valid list"),
        ({"role": "user", "content": ["x"]}, ["content", "0"], "an object"),
        ({"role": "user", "content": [TEXT, {}]}, ["content", "1", "type"], "Field required"),
        (
            {"role": "user", "content": [{"type": "tool_use"}]},
            ["content", "0", "type"],
            "`tool_use` blocks can only be in `assistant` messages",
        ),
        (
            {"role": "assistant", "content": [{"type": "tool_result"}]},
            ["content", "0", "type"],
            "`tool_result` blocks can only be in `user` messages",
        ),
        ({"role": "user", "content": [{"type": "video"}]}, ["content", "0", "type"], "'video'"),
        (
            {"role": "user", "content": [{"type": "text", "text": 5}]},
            ["content", "0", "text"],
            "valid string",
        ),
        (
            {"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]},
            ["content", "0", "source", "url"],
            "Field required",
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "x"}]}
                ],
            },
            ["content", "0", "content", "0", "type"],
            "'x'",
        ),
    ],
)
def test_a_bad_message_is_rejected_with_its_path(value, path, words):
    with pytest.raises(ValidationFault) as caught:
        MESSAGES([{"role": "user", "content": ""}, value])

    assert caught.value.path == ["1", *path]
    assert words in caught.value.message
