"""The transcript report: one JSON form for all contents, and the result of each tool call."""

import json
from datetime import timedelta

import pytest

from proxy.models import Transcript
from proxy.reports.requests.transcript_json import (
    blocks_of,
    redact_text,
    system_of,
    tools_of,
    turns_of,
)
from tests.proxy.admin import factories

FIRST_PROMPT = factories.REQUEST_BODY["messages"][0]
TOOL_CALLS = factories.REQUEST_BODY["messages"][1]
TOOL_RESULTS = factories.REQUEST_BODY["messages"][2]


@pytest.fixture
def get_transcript(client, db):
    secret = factories.key("finance", scopes=["admin"])[1]

    def get_transcript(exchange, **query):
        route = f"/api/v1/requests/{exchange.pk}/transcript/"
        return client.get(route, query, headers={"x-api-key": secret})

    return get_transcript


def record(minute, *messages, answer, session="", **opening):
    return factories.record(
        at=factories.NOON + timedelta(minutes=minute),
        body=factories.REQUEST_BODY | {"messages": list(messages)},
        answer=answer,
        opening={"session_id": session, **opening},
    )


def two_turns(session=""):
    """Record a request that calls two tools, and the next one with their results 30 s later."""
    first = record(
        0, FIRST_PROMPT, answer=factories.answer_body(*TOOL_CALLS["content"]), session=session
    )
    second = record(
        0.5, FIRST_PROMPT, TOOL_CALLS, TOOL_RESULTS, answer=factories.ANSWER, session=session
    )
    return first, second


def calls(transcript):
    return {
        block["id"]: block["result"]
        for turn in transcript.json()["turns"]
        for block in turn["blocks"]
        if block["type"] == "tool_use"
    }


def test_a_transcript_marks_new_turns(get_transcript):
    first, second = two_turns()

    transcript = get_transcript(second).json()

    assert [(t["i"], t["role"], t["new"]) for t in transcript["turns"]] == [
        (0, "user", False),
        (1, "assistant", True),
        (2, "user", True),
        (3, "assistant", True),
    ]
    assert [block["type"] for block in transcript["turns"][3]["blocks"]] == [
        "thinking", "text", "tool_use",
    ]  # fmt: skip
    assert transcript["turns"][3]["blocks"][0] == {
        "type": "thinking", "text": "Off by one in evict().", "signed": True,
    }  # fmt: skip
    assert transcript["system"][1] == {
        "kind": "text",
        "text": "Project: cartography.",
        "cached": True,
    }
    assert [tool["name"] for tool in transcript["tools"]] == ["Bash", "Read"]
    assert (transcript["request_id"], transcript["previous_request_id"]) == (second.pk, first.pk)
    assert transcript["stop_reason"] == second.stop_reason


@pytest.mark.parametrize("session", ["", "s1"])
def test_a_tool_call_has_the_request_and_the_time_of_its_result(get_transcript, session):
    first, second = two_turns(session)
    result = {"request_id": second.pk, "ms": 20_000}  # the first request took ten seconds

    transcript = [calls(get_transcript(each)) for each in (first, second)]

    results = {
        "toolu_1": result | {"is_error": False},
        "toolu_2": result | {"is_error": True},
    }
    assert transcript == [results, results | {"toolu_3": None}]


def test_an_old_result_has_the_request_that_first_sent_it(get_transcript):
    _, second = two_turns("s1")
    previous = {"role": "assistant", "content": factories.ANSWER["content"]}
    late = {"type": "tool_result", "tool_use_id": "toolu_3", "content": "1 file"}
    messages = [
        FIRST_PROMPT,
        TOOL_CALLS,
        TOOL_RESULTS,
        previous,
        {"role": "user", "content": [late]},
    ]
    third = record(2, *messages, answer=factories.answer_body(), session="s1")

    results = calls(get_transcript(third))

    assert {name: result["request_id"] for name, result in results.items()} == {
        "toolu_1": second.pk, "toolu_2": second.pk, "toolu_3": third.pk,
    }  # fmt: skip


def test_a_result_without_earlier_requests_has_no_time(get_transcript):
    single = record(0, FIRST_PROMPT, TOOL_CALLS, TOOL_RESULTS, answer=factories.answer_body())

    assert calls(get_transcript(single))["toolu_1"] == {
        "request_id": single.pk, "ms": None, "is_error": False,
    }  # fmt: skip


def test_results_of_invisible_requests_are_null(client, db):
    client.force_login(factories.ada())
    first, second = two_turns("s1")
    second.team = "research"
    second.save(update_fields=["team"])

    transcript = client.get(f"/api/v1/requests/{first.pk}/transcript/")

    assert calls(transcript) == {"toolu_1": None, "toolu_2": None}


@pytest.mark.parametrize("manifest", [b"no zstd", None])
def test_results_are_null_if_the_next_request_has_no_transcript(get_transcript, manifest):
    first, second = two_turns()
    stored = Transcript.objects.filter(pk=second.pk)
    stored.update(manifest=manifest) if manifest else stored.delete()

    assert calls(get_transcript(first)) == {"toolu_1": None, "toolu_2": None}


def test_a_redacted_transcript_has_lengths_instead_of_text(get_transcript):
    _, second = two_turns()

    whole, redacted = get_transcript(second), get_transcript(second, redact=1).json()

    texts = ("careful", "cartography", "tile cache", "Friday", "should not", "evict", "git", "png;")
    assert [text for text in texts if text in json.dumps(redacted)] == []
    assert redacted["turns"][3]["blocks"][2] == whole.json()["turns"][3]["blocks"][2] | {
        "input": {"command": "[29 characters]", "description": "[14 characters]"}
    }
    assert redacted["turns"][0]["blocks"][2]["media_type"] == "image/png"
    assert redacted["system"][1] == {"kind": "text", "text": "[21 characters]", "cached": True}
    assert [t["role"] for t in redacted["turns"]] == [t["role"] for t in whole.json()["turns"]]
    assert get_transcript(second, redact="perhaps").status_code == 400
    assert get_transcript(factories.record(with_content=False)).status_code == 404


def test_the_transcript_of_an_invalid_body_has_only_the_response(get_transcript):
    refused = factories.record(opening={"body": b"{not json"})

    transcript = get_transcript(refused).json()

    assert (transcript["system"], transcript["tools"]) == ([], [])
    assert [turn["role"] for turn in transcript["turns"]] == ["assistant"]


@pytest.mark.parametrize(
    ("block", "expected"),
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
def test_each_block_type_is_converted(block, expected):
    assert blocks_of([block, "stray"]) == [{"type": block["type"], **expected}]


def test_all_text_of_an_unknown_block_is_redacted():
    unknown = {
        "type": "hologram",
        "name": "Ada",
        "result": {"note": "Hm."},
        "blocks": "x",
        "none": None,
    }

    assert redact_text(unknown) == {
        "type": "hologram", "name": "[3 characters]", "result": "[14 characters]",
        "blocks": "[1 characters]", "none": None,
    }  # fmt: skip
    (call,) = blocks_of([{"type": "tool_use", "id": "t", "name": "f", "input": "{broken"}])
    assert redact_text(call)["input"] == "[7 characters]"


def test_a_line_added_by_the_client_has_the_kind_attribution():
    header = "x-anthropic-billing-header: cc_version=2.1.329;"

    assert [block["kind"] for block in system_of([{"type": "text", "text": header}])] == [
        "attribution"
    ]
    assert system_of("Be brief.") == [{"kind": "text", "text": "Be brief."}]
    assert system_of(None) == []


def test_equal_tool_schemas_have_the_same_hash():
    schema = {"type": "object", "properties": {"a": {}, "b": {}}}
    reordered = {"properties": {"b": {}, "a": {}}, "type": "object"}

    first, second, bash = tools_of(
        [
            {"name": "a", "input_schema": schema, "defer_loading": True},
            {"name": "b", "input_schema": reordered, "type": "custom"},
            {"name": "bash", "type": "bash_20250124"},
        ]
    )

    assert first["schema_sha"] == second["schema_sha"] != schema
    assert (first["deferred"], second["deferred"]) == (True, False)
    assert bash == {
        "name": "bash", "deferred": False, "type": "bash_20250124", "schema_sha": None,
    }  # fmt: skip


def test_the_response_is_always_new():
    (question, answer) = turns_of([{"role": "user", "content": "?"}], {"role": "assistant"}, 9)

    assert (question["new"], answer["new"], answer["blocks"]) == (False, True, [])
