"""Transcripts over REST: one shape for whatever was said, and what became of each tool call."""

import json
from datetime import timedelta

import pytest

from proxy.models import Transcript
from proxy.reports.turns import blocks_of, blotted, system_of, tools_of, turns_of
from tests.proxy.admin import cast

ASKED = cast.TALK["messages"][0]
CALLED = cast.TALK["messages"][1]
BROUGHT = cast.TALK["messages"][2]


@pytest.fixture
def ask(client, db):
    secret = cast.key("finance", scopes=["admin"])[1]

    def ask(exchange, **query):
        route = f"/api/v1/requests/{exchange.pk}/transcript/"
        return client.get(route, query, headers={"x-api-key": secret})

    return ask


def record(minute, *messages, answer, session="", **opening):
    return cast.record(
        at=cast.NOON + timedelta(minutes=minute),
        body=cast.TALK | {"messages": list(messages)},
        answer=answer,
        opening={"session_id": session, **opening},
    )


def two_turns(session=""):
    """A request that calls two tools, and the one that brings their results half a minute later."""
    first = record(0, ASKED, answer=cast.answer_body(*CALLED["content"]), session=session)
    second = record(0.5, ASKED, CALLED, BROUGHT, answer=cast.SAID, session=session)
    return first, second


def calls(found):
    return {
        block["id"]: block["result"]
        for turn in found.json()["turns"]
        for block in turn["blocks"]
        if block["type"] == "tool_use"
    }


def test_a_transcript_says_what_is_new_in_one_shape(ask):
    first, second = two_turns()

    found = ask(second).json()

    assert [(t["i"], t["role"], t["new"]) for t in found["turns"]] == [
        (0, "user", False),
        (1, "assistant", True),
        (2, "user", True),
        (3, "assistant", True),
    ]
    assert [block["type"] for block in found["turns"][3]["blocks"]] == [
        "thinking", "text", "tool_use",
    ]  # fmt: skip
    assert found["turns"][3]["blocks"][0] == {
        "type": "thinking", "text": "Off by one in evict().", "signed": True,
    }  # fmt: skip
    assert found["system"][1] == {"kind": "text", "text": "Project: cartography.", "cached": True}
    assert [tool["name"] for tool in found["tools"]] == ["Bash", "Read"]
    assert (found["request_id"], found["previous_request_id"]) == (second.pk, first.pk)
    assert found["stop_reason"] == second.stop_reason


@pytest.mark.parametrize("session", ["", "s1"])
def test_a_call_tells_which_request_brought_its_result_and_how_soon(ask, session):
    first, second = two_turns(session)
    brought = {"request_id": second.pk, "ms": 20_000}  # the first one took ten seconds

    told = [calls(ask(each)) for each in (first, second)]

    results = {
        "toolu_1": brought | {"is_error": False},
        "toolu_2": brought | {"is_error": True},
    }
    assert told == [results, results | {"toolu_3": None}]


def test_a_result_of_long_ago_is_told_by_the_request_that_brought_it(ask):
    _, second = two_turns("s1")
    said = {"role": "assistant", "content": cast.SAID["content"]}
    late = {"type": "tool_result", "tool_use_id": "toolu_3", "content": "1 file"}
    messages = [ASKED, CALLED, BROUGHT, said, {"role": "user", "content": [late]}]
    third = record(2, *messages, answer=cast.answer_body(), session="s1")

    results = calls(ask(third))

    assert {name: result["request_id"] for name, result in results.items()} == {
        "toolu_1": second.pk, "toolu_2": second.pk, "toolu_3": third.pk,
    }  # fmt: skip


def test_of_a_conversation_that_is_not_here_only_the_words_are_told(ask):
    alone = record(0, ASKED, CALLED, BROUGHT, answer=cast.answer_body())

    assert calls(ask(alone))["toolu_1"] == {
        "request_id": alone.pk, "ms": None, "is_error": False,
    }  # fmt: skip


def test_a_reader_hears_nothing_of_requests_that_are_not_theirs(client, db):
    client.force_login(cast.ada())
    first, second = two_turns("s1")
    second.team = "research"
    second.save(update_fields=["team"])

    found = client.get(f"/api/v1/requests/{first.pk}/transcript/")

    assert calls(found) == {"toolu_1": None, "toolu_2": None}


@pytest.mark.parametrize("manifest", [b"no zstd", None])
def test_a_next_request_without_its_words_leaves_the_results_untold(ask, manifest):
    first, second = two_turns()
    kept = Transcript.objects.filter(pk=second.pk)
    kept.update(manifest=manifest) if manifest else kept.delete()

    assert calls(ask(first)) == {"toolu_1": None, "toolu_2": None}


def test_redacted_it_tells_lengths_and_not_a_word(ask):
    _, second = two_turns()

    whole, bare = ask(second), ask(second, redact=1).json()

    words = ("careful", "cartography", "tile cache", "Friday", "should not", "evict", "git", "png;")
    assert [word for word in words if word in json.dumps(bare)] == []
    assert bare["turns"][3]["blocks"][2] == whole.json()["turns"][3]["blocks"][2] | {
        "input": {"command": "[29 characters]", "description": "[14 characters]"}
    }
    assert bare["turns"][0]["blocks"][2]["media_type"] == "image/png"
    assert bare["system"][1] == {"kind": "text", "text": "[21 characters]", "cached": True}
    assert [t["role"] for t in bare["turns"]] == [t["role"] for t in whole.json()["turns"]]
    assert ask(second, redact="perhaps").status_code == 400
    assert ask(cast.record(kept=False)).status_code == 404


def test_a_body_that_was_no_json_has_no_turns_but_its_answer(ask):
    refused = cast.record(opening={"body": b"{not json"})

    found = ask(refused).json()

    assert (found["system"], found["tools"]) == ([], [])
    assert [turn["role"] for turn in found["turns"]] == ["assistant"]


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({"type": "text", "text": "Hi."}, {"text": "Hi."}),
        ({"type": "thinking", "thinking": "", "signature": "s"}, {"text": "", "signed": True}),
        ({"type": "thinking", "thinking": "Hm."}, {"text": "Hm.", "signed": False}),
        (
            {"type": "redacted_thinking", "data": "abc"},
            {"text": None, "signed": True, "characters": 3},
        ),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}},
            {"source_type": "base64", "media_type": "image/png", "characters": 2},
        ),
        (
            {"type": "image", "source": {"type": "url", "url": "https://a.example/a.png"}},
            {"source_type": "url", "media_type": None, "url": "https://a.example/a.png"},
        ),
        (
            {"type": "document", "title": "R", "source": {"type": "text", "data": "x"}},
            {"source_type": "text", "media_type": None, "title": "R", "text": "x"},
        ),
        (
            {"type": "document", "source": {"type": "content", "content": "x"}},
            {"source_type": "content", "media_type": None, "blocks": [{"type": "text", "text": "x"}]},
        ),
        ({"type": "image", "source": "x"}, {"source_type": None, "media_type": None}),
        (
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
            {"id": "s", "name": "web_search", "input": {"query": "x"}, "result": None},
        ),
        (
            {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x"}]},
            {"tool_use_id": "t", "is_error": False, "blocks": [{"type": "text", "text": "x"}]},
        ),
        (
            {"type": "hologram", "beam": 1, "cache_control": {"type": "ephemeral"}},
            {"beam": 1, "cached": True},
        ),
    ],
)  # fmt: skip
def test_each_block_has_one_shape(block, told):
    assert blocks_of([block, "stray"]) == [{"type": block["type"], **told}]


def test_what_nobody_knows_is_blotted_out_whole():
    odd = {
        "type": "hologram",
        "name": "Ada",
        "result": {"said": "Hm."},
        "blocks": "x",
        "none": None,
    }

    assert blotted(odd) == {
        "type": "hologram", "name": "[3 characters]", "result": "[14 characters]",
        "blocks": "[1 characters]", "none": None,
    }  # fmt: skip
    (call,) = blocks_of([{"type": "tool_use", "id": "t", "name": "f", "input": "{broken"}])
    assert blotted(call)["input"] == "[7 characters]"


def test_a_line_that_the_client_added_is_told_apart():
    header = "x-anthropic-billing-header: cc_version=2.1.329;"

    assert [block["kind"] for block in system_of([{"type": "text", "text": header}])] == [
        "attribution"
    ]
    assert system_of("Be brief.") == [{"kind": "text", "text": "Be brief."}]
    assert system_of(None) == []


def test_equal_schemas_have_one_name():
    schema = {"type": "object", "properties": {"a": {}, "b": {}}}
    turned = {"properties": {"b": {}, "a": {}}, "type": "object"}

    one, other, bash = tools_of(
        [
            {"name": "a", "input_schema": schema, "defer_loading": True},
            {"name": "b", "input_schema": turned, "type": "custom"},
            {"name": "bash", "type": "bash_20250124"},
        ]
    )

    assert one["schema_sha"] == other["schema_sha"] != schema
    assert (one["deferred"], other["deferred"]) == (True, False)
    assert bash == {
        "name": "bash", "deferred": False, "type": "bash_20250124", "schema_sha": None,
    }  # fmt: skip


def test_an_answer_is_new_whatever_came_before():
    (question, answer) = turns_of([{"role": "user", "content": "?"}], {"role": "assistant"}, 9)

    assert (question["new"], answer["new"], answer["blocks"]) == (False, True, [])
