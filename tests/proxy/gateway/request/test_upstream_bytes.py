"""Bytes of the upstream are stored in checkpoints, within a limit, and masked after a failure."""

from proxy.gateway.request import ledger_records
from proxy.gateway.request.attempts import CHECKPOINT_BYTES, MAX_READ_BYTES
from proxy.gateway.request.request import LONG_STREAM
from proxy.ledger.journal.records import Chunk
from tests.proxy.gateway.request_factory import (
    CHUNK,
    CHUNKS,
    END,
    LATE,
    TARGET_RECORD,
    USAGE,
    RecordedRequest,
)


class SavedChunks:
    """A recorder that keeps the chunks."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []

    def chunk(self, record: Chunk) -> None:
        self.chunks.append(record)


def test_reads_are_saved_after_a_second_or_a_full_buffer():
    recorder = SavedChunks()
    saved, request = recorder.chunks, RecordedRequest(recorder=recorder)
    request.start_attempt(100.0)
    request.tick(200.0)  # there are no reads
    request.store_upstream_bytes(b"a", 100.25)
    request.tick(100.9)
    assert not saved
    request.at = 101.0
    request.tick(101.0)
    assert saved.pop() == Chunk(id=request.head.request_id, reads=[(250.0, b"a")])
    assert request.attempts.reads.saved_at == 101.0

    request.store_upstream_bytes(b"b" * (CHECKPOINT_BYTES - 1), 101.5)
    assert [len(request.take_unsaved_reads()), len(request.take_unsaved_reads())] == [1, 0]
    request.store_upstream_bytes(b"c" * (CHECKPOINT_BYTES - 1), 101.5)
    request.start_attempt(102.0)  # the earlier reads belong to another attempt
    assert [len(raw) for _, raw in saved.pop().reads] == [CHECKPOINT_BYTES - 1]
    request.store_upstream_bytes(b"d" * (CHECKPOINT_BYTES - 1), 102.5)
    assert not saved
    request.store_upstream_bytes(b"e", 102.5)
    assert (saved[0].attempt, saved[0].target, len(saved[0].reads)) == (1, TARGET_RECORD, 2)


KEY = b"sk-of-a-customer-0123456789"
STARS = b"*" * len(KEY)


def test_credential_patterns_are_masked_only_in_reads_of_failed_attempts():
    recorder = SavedChunks()
    saved, request = recorder.chunks, RecordedRequest(recorder=recorder)
    request.start_attempt(100.0)
    request.store_upstream_bytes(KEY, 100.0)
    request.checkpoint()
    assert [raw for _, raw in saved.pop().reads] == [KEY]

    request.store_upstream_bytes(KEY, 100.0)
    request.start_attempt(101.0)  # so the first one has failed
    assert [raw for _, raw in saved.pop().reads] == [STARS]

    request.store_upstream_bytes(KEY, 101.0)
    request.attempts.stream.fail(LATE)
    request.checkpoint()
    assert [raw for _, raw in saved.pop().reads] == [STARS]

    request.store_upstream_bytes(KEY, 101.0)
    assert [raw for _, raw in ledger_records.close_record(request, None).reads] == [STARS]


def test_the_reads_of_a_completed_response_are_stored_unchanged():
    request = RecordedRequest()
    request.start_attempt(100.0)
    request.feed(CHUNKS[1], END, {**CHUNK, "choices": [], "usage": USAGE})
    request.attempts.stream.end()
    request.store_upstream_bytes(KEY, 100.0)

    assert [raw for _, raw in ledger_records.close_record(request, None).reads] == [KEY]


def test_the_stored_bytes_of_each_attempt_are_limited():
    almost = b"1" * (MAX_READ_BYTES - 1)
    recorder = SavedChunks()
    request = RecordedRequest(recorder=recorder)
    request.start_attempt(100.0)
    request.store_upstream_bytes(almost, 100.0)  # saved at once, as the buffer is full
    assert request.all_notes() == []
    request.store_upstream_bytes(b"0 is over it", 100.0)
    request.store_upstream_bytes(b"not stored", 100.0)
    assert [raw for each in recorder.chunks for _, raw in each.reads] == [almost]
    assert [raw for _, raw in request.take_unsaved_reads()] == [b"0 is over it"]
    assert request.all_notes() == [LONG_STREAM]

    request.start_attempt(101.0)
    request.store_upstream_bytes(b"stored", 101.0)
    assert [raw for _, raw in request.take_unsaved_reads()] == [b"stored"]
    silent = RecordedRequest(store_full=False)
    silent.start_attempt(100.0)
    silent.store_upstream_bytes(b"a word", 100.0)
    assert silent.take_unsaved_reads() == []
