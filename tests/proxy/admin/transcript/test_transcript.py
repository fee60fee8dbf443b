"""The transcript page: its content, its permissions, and its audit log."""

import json

import pytest

from tests.proxy.admin import factories
from tests.proxy.admin.factories import page

pytestmark = pytest.mark.django_db


@pytest.fixture
def exchange():
    factories.price()
    return factories.record(
        body=factories.REQUEST_BODY, answer=factories.ANSWER, closing={"stop_reason": "tool_use"}
    )


def test_the_conversation_is_in_order_with_results_beside_their_calls(root, exchange):
    text = page(root, exchange).content.decode().split("mb-export-files")[1]

    order = [
        "System prompt",
        "The tests of the tile cache fail",
        "image · image/png · 8 bytes",
        "Thinking",
        "I will read the log first.",
        "toolu_1",
        "AssertionError: 4 == 3",
        "toolu_2",
        "fatal: not a git repository",
        "There is no git here",
        "The cache evicts one entry too late",
        "The next request has the result.",
    ]
    positions = [text.index(words) for words in order]
    assert positions == sorted(positions)
    assert text.count("mb-result-failed") == 1
    assert "tool_use" in text
    assert "$0.000750" in text  # the cost at the answer


def test_unknown_tokens_and_prices_do_not_show_as_zero(root):
    exchange = factories.record(closing={"usage": {"output": 3, "source": "reported"}})

    text = page(root, exchange).content.decode()

    assert "no price" in text
    assert "unknown" in text


def test_each_reading_enters_the_audit_log(root, exchange):
    page(root, exchange)
    page(root, exchange, "?tab=request")
    root.get(f"/admin/proxy/exchange/{exchange.pk}/body/stream/")
    page(root, exchange, "?tab=record")  # shows no text of the conversation

    entries = factories.audit(object_id=exchange.pk)
    assert [(entry.action, entry.names.subject, entry.detail) for entry in entries] == [
        ("read", exchange.user, "tab conversation"),
        ("read", exchange.user, "tab client request"),
        ("export", exchange.user, "download of the upstream stream"),
    ]


def test_a_missing_transcript_shows_its_reason(root):
    bare = factories.record(with_content=False)
    running = factories.record(closed=False)
    no_upstream = {"upstream": "", "dialect": "", "model_upstream": ""}
    refused = factories.record(
        with_content=False,
        opening=no_upstream,
        closing={**no_upstream, "outcome": "refused", "status": 400},
    )

    assert "rejected before an upstream was chosen" in page(root, refused).content.decode()
    assert "stores metadata only" in page(root, bare).content.decode()
    assert "not complete yet" in page(root, running).content.decode()


def test_a_damaged_transcript_shows_an_error_on_the_page(root, exchange):
    from proxy.models import Part

    Part.objects.all().delete()

    answer = page(root, exchange)

    assert answer.status_code == 200
    assert "damaged" in answer.content.decode()


def test_rows_without_the_transcript_permission_show_no_text(client, exchange):
    client.force_login(factories.staff("olga", "view_exchange"))

    text = page(client, exchange).content.decode()

    assert "I will read the log first." not in text
    assert "but not its transcript" in text


def test_the_page_takes_a_fixed_number_of_queries(root, exchange, django_assert_max_num_queries):
    long = [
        message
        for n in range(40)
        for message in (
            {"role": "user", "content": f"q{n}"},
            {"role": "assistant", "content": f"a{n}"},
        )
    ]
    exchange = factories.record(
        body=factories.request_body(messages=[*long, {"role": "user", "content": "?"}])
    )

    with django_assert_max_num_queries(17):
        page(root, exchange)
    with django_assert_max_num_queries(17):
        page(root, exchange)


def test_a_very_large_transcript_is_truncated_and_links_to_the_whole_blocks(root):
    big = "x" * 3_000_000
    messages = [
        {"role": "user", "content": [{"type": "text", "text": f"turn{n} {big}"}]} for n in range(4)
    ]
    exchange = factories.record(body=factories.request_body(messages=messages))

    answer = page(root, exchange)

    assert len(answer.content) < 600_000
    assert "path=messages.0.content.0" in answer.content.decode()
    whole = root.get(f"/admin/proxy/exchange/{exchange.pk}/part/?path=messages.0.content.0")
    assert len(whole.content) == len(big) + len("turn0 ")


def test_long_conversations_have_adjacent_pages(root):
    messages = [{"role": "user", "content": f"turn number {n};"} for n in range(60)]
    exchange = factories.record(body=factories.request_body(messages=messages))

    last, before = (
        page(root, exchange, query).content.decode().split('class="mb-turns"')[1]
        for query in ("", "?from=12")
    )

    shown = {n for n in range(60) if f"turn number {n};" in last}
    earlier = {n for n in range(60) if f"turn number {n};" in before}
    assert shown == set(range(36, 60))
    assert earlier == set(range(12, 36))


@pytest.mark.parametrize("query", ["?from=-1", "?from=999999", "?from=abc", "?from=٣"])
def test_invalid_page_numbers_are_ignored(root, exchange, query):
    assert page(root, exchange, query).status_code == 200


@pytest.mark.parametrize(
    "path", ["", "messages.99", "messages.x", "nowhere", "messages.0.content.0.text.0"]
)
def test_an_unknown_block_path_is_404_and_an_empty_one_the_whole(root, exchange, path):
    answer = root.get(f"/admin/proxy/exchange/{exchange.pk}/part/?path={path}")

    assert answer.status_code == (200 if path == "" else 404)


def test_a_rejected_body_can_be_read_and_downloaded_unchanged(root):
    body = b'{"model": "<script>x</script>", "messages": [5, '
    row = factories.record(
        opening={"body": body, "faulty": True, "session_id": "rejected", "upstream": ""},
        answer={},
        closing={"outcome": "refused", "status": 400, "target": {}, "upstream": "", "answer": None},
    )

    text = page(root, row).content.decode()

    assert "&quot;model&quot;: &quot;&lt;script&gt;x&lt;/script&gt;&quot;" in text
    for tab in ("sides", "request", "upstream", "stream", "sent", "answer", "replay", "record"):
        assert page(root, row, f"?tab={tab}").status_code == 200
    for query in ("", "&tab=words"):
        assert root.get(f"/admin/sessions/one/?id=rejected{query}").status_code == 200
    download = root.get(f"/admin/proxy/exchange/{row.pk}/body/request/")
    assert download.content == body
    assert f"--data-binary @{row.pk}-request.txt" in text
    assert download["Content-Disposition"] == f'attachment; filename="{row.pk}-request.txt"'
    for side in ("transcript", "session"):
        assert root.get(f"/admin/proxy/exchange/{row.pk}/body/{side}/").status_code == 200


MALFORMED_BODIES = [
    {"messages": "no list"},
    {"messages": [None, 7, "text", [], {}]},
    {"messages": [{"role": 5, "content": {"type": "text"}}]},
    {"messages": [{"role": "user", "content": [None, 1, {"type": None}, {"type": ["x"]}]}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": {"a": 1}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "image", "source": "x"}]}]},
    {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": 7}]}]},
    {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": 7, "input": "{"}]}]},
    {"system": 9, "tools": [1, {"name": 3}], "messages": []},
]


@pytest.mark.parametrize("body", MALFORMED_BODIES)
def test_bodies_of_any_shape_open(root, body):
    from proxy.admin.transcript.conversation import read_conversation

    read_conversation(body, None)
    exchange = factories.record(body=factories.request_body(**body))

    assert page(root, exchange).status_code == 200


def test_an_exchange_without_a_replay_shows_the_reason(root, exchange):
    assert "The upstream never answered" in page(root, exchange, "?tab=replay").content.decode()
    assert "The upstream never answered" in page(root, exchange, "?tab=sides").content.decode()
    assert root.get(f"/admin/proxy/exchange/{exchange.pk}/body/sent/").status_code == 404


def test_curl_repeats_the_request_without_its_key(root, tmp_path):
    """A shell runs the command with a fake curl that prints its arguments."""
    import os
    import subprocess
    from html import unescape

    content = 'it\'s $HOME `id` \\ "quoted"\n%s'
    row = factories.record(
        body=factories.request_body(messages=[{"role": "user", "content": content}], stream=True),
        opening={"betas": ["b-1", "b-2"], "api_version": "2026-10-21"},
    )
    text = page(root, row).content.decode()
    command = unescape(text.split('id="curl-text"')[1].split(">", 1)[1].split("</pre>")[0])
    fake = tmp_path / "curl"
    fake.write_text('#!/bin/sh\nfor word; do printf "%s\\0" "$word"; done\n')
    fake.chmod(0o700)

    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ANTHROPIC_API_KEY": "sk-own"}
    ran = subprocess.run(["sh", "-c", command], capture_output=True, env=environment, check=True)  # noqa: S603, S607 - the test's own command

    arguments = ran.stdout.decode().split("\0")[:-1]
    assert "sk-br" not in command
    assert arguments[:2] == ["-N", "http://testserver/v1/messages"]
    assert "x-api-key: sk-own" in arguments
    assert "anthropic-version: 2026-10-21" in arguments
    assert "anthropic-beta: b-1,b-2" in arguments
    assert json.loads(arguments[-1])["messages"][0]["content"] == content


def test_curl_reads_a_long_body_from_a_file(root):
    row = factories.record(body=factories.request_body(system="x" * 40_000))

    text = page(root, row).content.decode()

    assert f"@{row.pk}-request.json" in text
    assert "xxxxxxxxxxxxxxxxxxxx" not in text.split('id="curl-text"')[1].split("</pre>")[0]


def test_downloads_have_the_whole_transcript(root, exchange):
    whole = root.get(f"/admin/proxy/exchange/{exchange.pk}/body/transcript/")
    lines = (
        root.get(f"/admin/proxy/exchange/{exchange.pk}/body/session/").content.decode().splitlines()
    )

    assert whole["Content-Disposition"] == f'attachment; filename="{exchange.pk}-transcript.json"'
    assert json.loads(whole.content)["request"] == factories.REQUEST_BODY
    assert json.loads(whole.content)["answer"]["content"] == factories.ANSWER["content"]
    assert [json.loads(line)["message"].get("role") for line in lines] == [
        "user", "assistant", "user", "assistant",
    ]  # fmt: skip


def test_without_the_raw_permission_curl_is_missing(client, exchange):
    client.force_login(factories.staff("rita", "view_exchange", "view_transcript"))

    text = page(client, exchange).content.decode()

    assert "curl-text" not in text
