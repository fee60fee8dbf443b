"""The transcript page: what a reader sees, who may, and that the reading is noted."""

import json
import time

import pytest
from django.contrib.admin.models import LogEntry

from tests.proxy.admin import cast
from tests.proxy.admin.cast import page

pytestmark = pytest.mark.django_db


@pytest.fixture
def talk():
    cast.price()
    return cast.record(body=cast.TALK, answer=cast.SAID, closing={"stop_reason": "tool_use"})


def test_a_conversation_reads_in_order_with_calls_beside_their_results(root, talk):
    text = page(root, talk).content.decode().split("mb-take-files")[1]

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
        "Its result comes with the next request.",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert text.count("mb-result-failed") == 1
    assert "tool_use" in text
    assert "$0.000750" in text  # at the answer


def test_unknown_tokens_and_prices_are_said_not_zeroed(root):
    exchange = cast.record(closing={"usage": {"output": 3, "source": "reported"}})

    text = page(root, exchange).content.decode()

    assert "no price" in text
    assert "unknown" in text


def test_each_reading_is_noted(root, talk):
    page(root, talk)
    page(root, talk, "?tab=request")
    root.get(f"/admin/proxy/exchange/{talk.pk}/body/stream/")
    page(root, talk, "?tab=record")  # shows no word of it

    said = LogEntry.objects.filter(object_id=talk.pk).order_by("pk")
    assert [entry.change_message for entry in said] == [
        "Read the transcript (conversation).",
        "Read the transcript (client request).",
        "Downloaded the upstream stream.",
    ]


def test_requests_of_which_there_is_nothing_say_why(root):
    bare = cast.record(kept=False)
    running = cast.record(closed=False)
    nobody = {"upstream": "", "dialect": "", "model_upstream": ""}
    refused = cast.record(
        kept=False, opening=nobody, closing={**nobody, "outcome": "refused", "status": 400}
    )

    assert "turned away before any upstream was chosen" in page(root, refused).content.decode()
    assert "keeps metadata only" in page(root, bare).content.decode()
    assert "still on its way" in page(root, running).content.decode()


def test_a_damaged_transcript_does_not_take_the_page_down(root, talk):
    from proxy.models import Part

    Part.objects.all().delete()

    answer = page(root, talk)

    assert answer.status_code == 200
    assert "damaged" in answer.content.decode()


def test_whoever_may_not_see_the_team_finds_nothing(client, talk):
    client.force_login(
        cast.staff("eve", "view_exchange", "view_transcript", groups=("team:research",))
    )

    assert page(client, talk).status_code == 404
    assert client.get(f"/admin/proxy/exchange/{talk.pk}/part/?path=messages").status_code == 404
    assert talk.pk not in client.get("/admin/proxy/exchange/").content.decode()
    found = client.get(f"/admin/proxy/exchange/?q={talk.pk}").context["cl"]
    assert found.result_list == []


def test_seeing_rows_is_not_reading_words(client, talk):
    client.force_login(cast.staff("olga", "view_exchange"))

    text = page(client, talk).content.decode()

    assert "I will read the log first." not in text
    assert "not what was said" in text
    assert page(client, talk, "?tab=request").status_code == 403
    assert client.get(f"/admin/proxy/exchange/{talk.pk}/part/?path=messages").status_code == 403
    assert client.get(f"/admin/proxy/exchange/{talk.pk}/body/request/").status_code == 403


def test_the_page_takes_a_fixed_number_of_queries(root, talk, django_assert_max_num_queries):
    long = [
        message
        for n in range(40)
        for message in (
            {"role": "user", "content": f"q{n}"},
            {"role": "assistant", "content": f"a{n}"},
        )
    ]
    exchange = cast.record(
        body=cast.request_body(messages=[*long, {"role": "user", "content": "?"}])
    )

    with django_assert_max_num_queries(12):
        page(root, talk)
    with django_assert_max_num_queries(12):
        page(root, exchange)


def test_a_very_large_transcript_shows_a_page_and_leads_to_the_rest(root):
    big = "x" * 3_000_000
    messages = [
        {"role": "user", "content": [{"type": "text", "text": f"turn{n} {big}"}]} for n in range(4)
    ]
    exchange = cast.record(body=cast.request_body(messages=messages))

    began = time.perf_counter()
    answer = page(root, exchange)
    took = time.perf_counter() - began

    assert len(answer.content) < 600_000
    assert "path=messages.0.content.0" in answer.content.decode()
    assert took < 20  # a bound against hanging, not a measurement
    whole = root.get(f"/admin/proxy/exchange/{exchange.pk}/part/?path=messages.0.content.0")
    assert len(whole.content) == len(big) + len("turn0 ")


def test_long_conversations_come_in_pages_that_meet(root):
    messages = [{"role": "user", "content": f"turn number {n};"} for n in range(60)]
    exchange = cast.record(body=cast.request_body(messages=messages))

    last, before = (
        page(root, exchange, query).content.decode().split('class="mb-turns"')[1]
        for query in ("", "?from=12")
    )

    shown = {n for n in range(60) if f"turn number {n};" in last}
    earlier = {n for n in range(60) if f"turn number {n};" in before}
    assert shown == set(range(36, 60))
    assert earlier == set(range(12, 36))


@pytest.mark.parametrize("odd", ["?from=-1", "?from=999999", "?from=abc", "?from=٣"])
def test_odd_page_numbers_do_no_harm(root, talk, odd):
    assert page(root, talk, odd).status_code == 200


@pytest.mark.parametrize(
    "path", ["", "messages.99", "messages.x", "nowhere", "messages.0.content.0.text.0"]
)
def test_a_block_that_is_not_there_is_404_or_the_whole(root, talk, path):
    answer = root.get(f"/admin/proxy/exchange/{talk.pk}/part/?path={path}")

    assert answer.status_code == (200 if path == "" else 404)


def test_a_body_that_was_refused_can_be_read_and_taken_as_it_came(root):
    body = b'{"model": "<script>x</script>", "messages": [5, '
    row = cast.record(
        opening={"body": body, "faulty": True, "session_id": "odd", "upstream": ""},
        answer={},
        closing={"outcome": "refused", "status": 400, "target": {}, "upstream": "", "answer": None},
    )

    text = page(root, row).content.decode()

    assert "&quot;model&quot;: &quot;&lt;script&gt;x&lt;/script&gt;&quot;" in text
    for tab in ("sides", "request", "upstream", "stream", "sent", "answer", "replay", "record"):
        assert page(root, row, f"?tab={tab}").status_code == 200
    for where in ("", "&tab=words"):
        assert root.get(f"/admin/sessions/one/?id=odd{where}").status_code == 200
    taken = root.get(f"/admin/proxy/exchange/{row.pk}/body/request/")
    assert taken.content == body
    assert f"--data-binary @{row.pk}-request.txt" in text
    assert taken["Content-Disposition"] == f'attachment; filename="{row.pk}-request.txt"'
    for side in ("transcript", "session"):
        assert root.get(f"/admin/proxy/exchange/{row.pk}/body/{side}/").status_code == 200


ODD_BODIES = [
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


@pytest.mark.parametrize("body", ODD_BODIES)
def test_bodies_of_any_shape_can_be_read(root, body):
    from proxy.admin.conversation import read_conversation

    read_conversation(body, None)
    exchange = cast.record(body=cast.request_body(**body))

    assert page(root, exchange).status_code == 200


def test_what_cannot_be_replayed_says_why(root, talk):
    assert "The upstream never answered" in page(root, talk, "?tab=replay").content.decode()
    assert "The upstream never answered" in page(root, talk, "?tab=sides").content.decode()
    assert root.get(f"/admin/proxy/exchange/{talk.pk}/body/sent/").status_code == 404


def test_curl_asks_the_same_again_with_the_key_left_out(root, tmp_path):
    """The command is run by a shell, with a curl that writes down what it was given."""
    import os
    import subprocess
    from html import unescape

    said = 'it\'s $HOME `id` \\ "quoted"\n%s'
    row = cast.record(
        body=cast.request_body(messages=[{"role": "user", "content": said}], stream=True),
        opening={"betas": ["b-1", "b-2"], "api_version": "2026-10-21"},
    )
    text = page(root, row).content.decode()
    command = unescape(text.split('id="curl-text"')[1].split(">", 1)[1].split("</pre>")[0])
    fake = tmp_path / "curl"
    fake.write_text('#!/bin/sh\nfor word; do printf "%s\\0" "$word"; done\n')
    fake.chmod(0o700)

    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ANTHROPIC_API_KEY": "sk-own"}
    ran = subprocess.run(["sh", "-c", command], capture_output=True, env=environment, check=True)  # noqa: S603, S607 - our own

    words = ran.stdout.decode().split("\0")[:-1]
    assert "sk-br" not in command
    assert words[:2] == ["-N", "http://testserver/v1/messages"]
    assert "x-api-key: sk-own" in words
    assert "anthropic-version: 2026-10-21" in words
    assert "anthropic-beta: b-1,b-2" in words
    assert json.loads(words[-1])["messages"][0]["content"] == said


def test_a_long_body_goes_beside_the_command(root):
    row = cast.record(body=cast.request_body(system="x" * 40_000))

    text = page(root, row).content.decode()

    assert f"@{row.pk}-request.json" in text
    assert "xxxxxxxxxxxxxxxxxxxx" not in text.split('id="curl-text"')[1].split("</pre>")[0]


def test_downloads_are_files_with_all_of_it(root, talk):
    whole = root.get(f"/admin/proxy/exchange/{talk.pk}/body/transcript/")
    lines = root.get(f"/admin/proxy/exchange/{talk.pk}/body/session/").content.decode().splitlines()

    assert whole["Content-Disposition"] == f'attachment; filename="{talk.pk}-transcript.json"'
    assert json.loads(whole.content)["request"] == cast.TALK
    assert json.loads(whole.content)["answer"]["content"] == cast.SAID["content"]
    assert [json.loads(line)["message"].get("role") for line in lines] == [
        "user", "assistant", "user", "assistant",
    ]  # fmt: skip


def test_without_the_raw_permission_there_is_no_curl_and_no_file(client, talk):
    client.force_login(cast.staff("rita", "view_exchange", "view_transcript"))

    text = page(client, talk).content.decode()

    assert "curl-text" not in text
    for side in ("transcript", "session", "sent"):
        assert client.get(f"/admin/proxy/exchange/{talk.pk}/body/{side}/").status_code == 403
    assert page(client, talk, "?tab=replay").status_code == 403
    assert page(client, talk, "?tab=sides").status_code == 403
