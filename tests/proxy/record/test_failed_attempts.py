"""What failing attempts were told stands apart from the stream of the one that answered."""

import pytest

from proxy.record import transcripts
from proxy.record.conversation import MOST_FAILED_BYTES
from proxy.record.posting import post, story_of
from proxy.record.records import Chunk, Record
from proxy.record.replaying import CannotReplay, compare
from proxy.record.transcripts import StoredTranscript

from .making import closing, exchange_id, opening

pytestmark = pytest.mark.django_db


def stored_of(*records: Record) -> StoredTranscript:
    """What the transcripts keep when these are posted."""
    story = story_of(records)
    assert story is not None
    post([story])
    stored = transcripts.read(exchange_id(1))
    assert stored is not None
    return stored


def test_what_failing_attempts_were_told_is_kept_apart_from_the_stream() -> None:
    pk, other = exchange_id(1), {"upstream": "other", "model": "m-2"}
    first, last = {"upstream": "openai", "model": "gpt-5.2"}, {"upstream": "third", "model": "m-3"}
    stored = stored_of(
        opening(1, target=first),
        Chunk(id=pk, reads=[(1.0, b"<p>"), (2.0, b"no</p>")], status=502),
        Chunk(id=pk, reads=[(3.0, b"a" * MOST_FAILED_BYTES), (4.0, b"b")], attempt=1, target=other),
        closing(
            1, attempt=3, upstream_status=529, target=last, reads=[(9.25, b"{}")],
            outcome="upstream_error",
        ),
    )  # fmt: skip

    assert [each.told() for each in stored.failed] == [
        {"attempt": 1, **first, "status": 502, "body": "<p>no</p>"},
        {"attempt": 2, **other, "status": 200, "body": "a" * MOST_FAILED_BYTES},
        {"attempt": 4, **last, "status": 529, "body": "{}"},
    ]
    assert (stored.upstream_reads, stored.upstream_body) == ([], b"{}")


def test_a_stream_is_never_that_of_an_attempt_before_the_last() -> None:
    """Nor are its bytes told with the name of who was dialled last."""
    pk = exchange_id(1)
    stored = stored_of(
        opening(1, target={"upstream": "openai"}),
        Chunk(id=pk, reads=[(1.0, b"data: half")]),
        closing(1, attempt=1, target={"upstream": "other"}, outcome="upstream_error"),
    )

    assert (stored.upstream_reads, stored.upstream_body) == ([], b"data: half")
    assert [(each.upstream, each.model) for each in stored.failed] == [("openai", "")]
    with pytest.raises(CannotReplay, match="the upstream never answered"):
        compare(stored)
