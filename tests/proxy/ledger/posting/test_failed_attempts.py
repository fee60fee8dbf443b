"""Responses of failed attempts are stored separately from the stream of the last attempt."""

import pytest

from proxy.ledger.journal.records import Chunk, Record
from proxy.ledger.maintenance.replay_comparison import CannotReplay, compare
from proxy.ledger.posting.ledger_writer import group_records, write_to_database
from proxy.ledger.transcripts import storage
from proxy.ledger.transcripts.encoding import MAX_FAILED_BYTES
from proxy.ledger.transcripts.storage import StoredTranscript
from tests.proxy.ledger.factories import closing, exchange_id, opening

pytestmark = pytest.mark.django_db


def stored_of(*records: Record) -> StoredTranscript:
    """Write the records and return the stored transcript."""
    group = group_records(records)
    assert group is not None
    write_to_database([group])
    stored = storage.read(exchange_id(1))
    assert stored is not None
    return stored


def test_responses_of_failed_attempts_are_not_part_of_the_stream() -> None:
    pk, other = exchange_id(1), {"upstream": "other", "model": "m-2"}
    first, last = {"upstream": "openai", "model": "gpt-5.2"}, {"upstream": "third", "model": "m-3"}
    stored = stored_of(
        opening(1, target=first),
        Chunk(id=pk, reads=[(1.0, b"<p>"), (2.0, b"no</p>")], status=502),
        Chunk(id=pk, reads=[(3.0, b"a" * MAX_FAILED_BYTES), (4.0, b"b")], attempt=1, target=other),
        closing(
            1, attempt=3, upstream_status=529, target=last, reads=[(9.25, b"{}")],
            outcome="upstream_error",
        ),
    )  # fmt: skip

    assert [each.as_dict() for each in stored.failed] == [
        {"attempt": 1, **first, "status": 502, "body": "<p>no</p>"},
        {"attempt": 2, **other, "status": 200, "body": "a" * MAX_FAILED_BYTES},
        {"attempt": 4, **last, "status": 529, "body": "{}"},
    ]
    assert (stored.upstream_reads, stored.upstream_body) == ([], b"{}")


def test_the_stream_of_an_earlier_attempt_is_stored_as_failed() -> None:
    """The stored stream has the target of the earlier attempt."""
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
