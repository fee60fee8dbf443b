"""The four bodies of an exchange side by side, and the replay."""

import json

import pytest

from tests.proxy.admin import factories
from tests.proxy.admin.factories import page

pytestmark = pytest.mark.django_db


@pytest.fixture
def answered():
    """A request with its upstream stream, as the gateway stores it."""
    from tests.proxy.gateway import upstream_scripts

    words = ["The cache ", "evicts one ", "entry too late."]
    events = upstream_scripts.responses_events(words)
    body = factories.request_body(stream=True)
    row = factories.record(
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

    from proxy.ledger.transcripts.stream_replay import DIALECTS, target_of

    translated = DIALECTS["responses"].build_request(body, target_of(factories.TARGET)).body
    return hashlib.sha256(msgspec.json.encode(translated)).hexdigest()


def test_four_bodies_are_side_by_side(root, answered):
    row, _ = answered

    text = page(root, row, "?tab=sides").content.decode()
    text = text.split('class="mb-sides"')[1]

    order = [
        "Client request", "Which files are here?", "Upstream request", "byte for byte what was sent",
        "input_text", "Upstream stream", "100.0 ms", "response.output_text.delta", "Sent stream",
        "event: message_start", "text_delta", "event: message_stop",
    ]  # fmt: skip
    positions = [text.index(words) for words in order]
    assert positions == sorted(positions)
    assert text.count('class="mb-side"') == 4


def test_the_sent_stream_downloads_as_sse(root, answered):
    row, _ = answered

    sent = root.get(f"/admin/proxy/exchange/{row.pk}/body/sent/").content.decode()

    kinds = [line.removeprefix("event: ") for line in sent.splitlines() if line.startswith("event")]
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert kinds.count("content_block_delta") == 3


def test_a_replay_with_a_different_answer_shows_the_diff(root, answered):
    row, _ = answered

    text = page(root, row, "?tab=replay").content.decode()

    assert "Different answer." in text  # the default answer has other words
    assert 'class="mb-line-del"' in text
    assert "The cache evicts one entry too late." in text


def test_a_replay_with_the_same_answer_is_reported_as_same(root, answered):
    from proxy.ledger.maintenance.replay_comparison import compare
    from proxy.ledger.transcripts import storage

    row, stream = answered
    today = compare(storage.read(row.pk)).replayed.answer
    same = factories.record(
        answer=today, reads=((1.0, stream),), body=factories.request_body(stream=True)
    )

    assert "Same answer." in page(root, same, "?tab=replay").content.decode()


def test_the_error_body_of_an_upstream_is_on_the_stream_tab(root):
    error_page = b"<h1>Bad Gateway</h1><script>x</script>"
    row = factories.record(failed=((502, error_page),), closing={"outcome": "upstream_error"})

    text = page(root, row, "?tab=stream").content.decode()

    assert "attempt 1, openai: status 502" in text
    assert "&lt;h1&gt;Bad Gateway&lt;/h1&gt;&lt;script&gt;x&lt;/script&gt;" in text
    assert f"{len(error_page)} bytes" in text
    download = root.get(f"/admin/proxy/exchange/{row.pk}/body/stream/")
    assert download.content == error_page
    assert download["Content-Disposition"] == f'attachment; filename="{row.pk}-stream.txt"'
    whole = root.get(f"/admin/proxy/exchange/{row.pk}/body/transcript/")
    assert json.loads(whole.content)["failed_attempts"] == [
        {"attempt": 1, "upstream": "openai", "model": "gpt-5.2", "status": 502,
         "body": error_page.decode()},
    ]  # fmt: skip
    replay = page(root, row, "?tab=replay").content.decode()
    assert "The upstream answered with status 502: nothing to replay." in replay


def test_a_long_error_body_leaves_space_for_the_stream_of_the_next_attempt(root, answered):
    _, stream = answered
    row = factories.record(failed=((503, b"<p>" * 20_000),), reads=((5.0, stream),))

    text = page(root, row, "?tab=sides").content.decode().split('class="mb-sides"')[1]

    order = ["attempt 1, openai: status 503", "&lt;p&gt;&lt;p&gt;", "response.created",
             "Only the beginning is shown.", f"{len(stream):,} bytes in 1 reads"]  # fmt: skip
    assert sorted(order, key=text.index) == order
    assert row.pk in text
    assert root.get(f"/admin/proxy/exchange/{row.pk}/body/stream/").content == stream


def test_the_request_size_excludes_answer_and_errors(root):
    row = factories.record(failed=((503, b"x" * 50_000),), answer=factories.answer_body())

    text = page(root, row, "?tab=request").content.decode()

    size = int(text.split("Download</a>")[1].split(" bytes")[0].split(">")[-1].replace(",", ""))
    assert size < 200
    assert "-request.json" not in page(root, row).content.decode()
