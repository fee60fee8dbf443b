"""What was said to and by whom, side by side, as it came; and what a replay makes of it."""

import json

import pytest

from tests.proxy.admin import cast
from tests.proxy.admin.cast import page

pytestmark = pytest.mark.django_db


@pytest.fixture
def answered():
    """A request with its upstream stream, as the gateway would have kept it."""
    from tests.proxy.gateway import scripts

    words = ["The cache ", "evicts one ", "entry too late."]
    events = scripts.responses_events(words)
    body = cast.request_body(stream=True)
    row = cast.record(
        body=body,
        answer=None,
        reads=tuple((100.0 * n, event) for n, event in enumerate(events, 1)),
        closing={"upstream_request_sha256": upstream_digest(body)},
        opening={"request_bytes": 200, "betas": ["b-1"], "api_version": "2023-06-01"},
    )
    return row, b"".join(events)


def upstream_digest(body):
    import hashlib

    import msgspec

    from proxy.record.rebuild import dialect_of, target_of

    made = dialect_of("responses").build_request(body, target_of(cast.TARGET)).body
    return hashlib.sha256(msgspec.json.encode(made)).hexdigest()


def test_four_sides_stand_beside_each_other(root, answered):
    row, _ = answered

    text = page(root, row, "?tab=sides").content.decode()
    text = text.split('class="mb-sides"')[1]

    order = [
        "Client request", "Which files are here?", "Upstream request", "byte for byte what was sent",
        "input_text", "Upstream stream", "100.0 ms", "response.output_text.delta", "Sent stream",
        "event: message_start", "text_delta", "event: message_stop",
    ]  # fmt: skip
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert text.count('class="mb-side"') == 4


def test_the_sent_stream_can_be_downloaded_and_is_a_stream(root, answered):
    row, _ = answered

    sent = root.get(f"/admin/proxy/exchange/{row.pk}/body/sent/").content.decode()

    kinds = [line.removeprefix("event: ") for line in sent.splitlines() if line.startswith("event")]
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert kinds.count("content_block_delta") == 3


def test_a_replay_says_what_today_makes_of_it(root, answered):
    row, _ = answered

    text = page(root, row, "?tab=replay").content.decode()

    assert "Another answer." in text  # the cast's answer has other words
    assert 'class="mb-line-del"' in text
    assert "The cache evicts one entry too late." in text


def test_a_replay_of_what_is_the_same_says_so(root, answered):
    from proxy.record import transcripts
    from proxy.record.replaying import compare

    row, stream = answered
    today = compare(transcripts.read(row.pk), row.request_bytes).again.answer
    same = cast.record(answer=today, reads=((1.0, stream),), body=cast.request_body(stream=True))

    assert "The same answer." in page(root, same, "?tab=replay").content.decode()


def test_what_an_upstream_said_instead_of_an_answer_stands_where_its_stream_would(root):
    page_told = b"<h1>Bad Gateway</h1><script>x</script>"
    row = cast.record(failed=((502, page_told),), closing={"outcome": "upstream_error"})

    text = page(root, row, "?tab=stream").content.decode()

    assert "attempt 1, openai: status 502" in text
    assert "&lt;h1&gt;Bad Gateway&lt;/h1&gt;&lt;script&gt;x&lt;/script&gt;" in text
    assert f"{len(page_told)} bytes" in text
    taken = root.get(f"/admin/proxy/exchange/{row.pk}/body/stream/")
    assert taken.content == page_told
    assert taken["Content-Disposition"] == f'attachment; filename="{row.pk}-stream.txt"'
    whole = root.get(f"/admin/proxy/exchange/{row.pk}/body/transcript/")
    assert json.loads(whole.content)["failed_attempts"] == [
        {"attempt": 1, "upstream": "openai", "model": "gpt-5.2", "status": 502,
         "body": page_told.decode()},
    ]  # fmt: skip
    replay = page(root, row, "?tab=replay").content.decode()
    assert "The upstream answered with status 502: nothing to replay." in replay


def test_a_long_error_of_the_first_attempt_leaves_room_for_the_second_one_s_stream(root, answered):
    _, stream = answered
    row = cast.record(failed=((503, b"<p>" * 20_000),), reads=((5.0, stream),))

    text = page(root, row, "?tab=sides").content.decode().split('class="mb-sides"')[1]

    order = ["attempt 1, openai: status 503", "&lt;p&gt;&lt;p&gt;", "response.created",
             "Only the beginning is shown.", f"{len(stream):,} bytes in 1 reads"]  # fmt: skip
    assert sorted(order, key=text.index) == order
    assert row.pk in text
    assert root.get(f"/admin/proxy/exchange/{row.pk}/body/stream/").content == stream


def test_a_request_s_size_is_its_own(root):
    row = cast.record(failed=((503, b"x" * 50_000),), answer=cast.answer_body())

    text = page(root, row, "?tab=request").content.decode()

    size = int(text.split("Download</a>")[1].split(" bytes")[0].split(">")[-1].replace(",", ""))
    assert size < 200
    assert "-request.json" not in page(root, row).content.decode()
