"""Segment files: every frame is found again, and damage costs no frame but the damaged one."""

import os
from pathlib import Path

import pytest

from proxy.ledger.journal import segments
from proxy.ledger.journal.records import CHUNK, OPEN
from proxy.ledger.journal.segments import HEADER, Damage, Frame, Segment

from .faulty_disk import FaultyDisk

WRITER = b"12345678"


def write(directory: Path, *bodies: bytes) -> Path:
    """Return the path of a segment with one frame for each body."""
    segment = Segment(directory, segments.next_number(directory), WRITER)
    for n, (body, compressed) in enumerate(map(segments.compress, bodies), 1):
        frame = segments.encode_frame(n, 7.5, 0, f"req_{n}", body, compressed=compressed)
        segment.append([frame])
    segment.close()
    return segment.path


def read(path: Path) -> list[Frame | Damage]:
    with path.open("rb") as file:
        return list(segments.read_frames(file.fileno(), HEADER.size, path.stat().st_size))


def frames_in(path: Path) -> list[str]:
    return [found.id for found in read(path) if isinstance(found, Frame)]


def body_at(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        return segments.body_of(segments.read_frame(file.fileno(), offset))


@pytest.mark.parametrize("size", [0, 1, 4_095, 4_096, 100_000, 3 * 2**20])
def test_body_of_any_size_is_read_back_whole(tmp_path: Path, size: int) -> None:
    body = os.urandom(size)
    path = write(tmp_path, b"first", body, b"last")

    found = read(path)

    assert [(one.number, one.at, one.kind) for one in found] == [(n, 7.5, 0) for n in (1, 2, 3)]
    assert [body_at(path, one.offset) for one in found] == [b"first", body, b"last"]


def test_large_body_takes_little_space(tmp_path: Path) -> None:
    path = write(tmp_path, b"data: a delta like all others\n\n" * 5_000)

    assert path.stat().st_size < 3_000


def test_erased_frame_has_its_number_time_and_id_but_no_record(tmp_path: Path) -> None:
    frame = segments.encode_frame(2, 7.5, OPEN, "req_2", b"the text of a person")
    path = tmp_path / "frames"

    path.write_bytes(bytes(HEADER.size) + segments.erased(frame))

    end = HEADER.size + len(frame)
    assert read(path) == [Frame(HEADER.size, end, 2, 7.5, CHUNK, "req_2")]
    assert not any(body_at(path, HEADER.size))


def test_id_that_is_no_unicode_is_stored_as_text(tmp_path: Path) -> None:
    frame = segments.encode_frame(1, 0.0, 0, "req_\ud800", b"x")
    path = tmp_path / "frames"
    path.write_bytes(bytes(HEADER.size) + frame)

    assert frames_in(path) == ["req_\\ud800"]


@pytest.mark.parametrize("cut", range(1, 60))
def test_torn_tail_of_any_length_costs_only_the_last_frame(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path, b"a" * 30, b"b" * 30)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])

    *frames, damage = read(path)

    assert [one.id for one in frames if isinstance(one, Frame)] == ["req_1"]
    assert isinstance(damage, Damage)
    assert damage.torn
    assert damage.end == len(whole) - cut


@pytest.mark.parametrize(("tail", "torn"), [(b"\0" * 3_000, True), (b"\xff" * 3_000, False)])
def test_zeros_at_the_end_are_torn_and_other_bytes_are_damage(
    tmp_path: Path, tail: bytes, torn: bool
) -> None:
    path = write(tmp_path, b"a")
    end = path.stat().st_size
    with path.open("ab") as file:
        file.write(tail)

    assert read(path)[1:] == [Damage(end, end + 3_000, torn=torn)]


@pytest.mark.parametrize("at", [0, 4, 8, 12, 40, 60])
def test_damaged_frame_is_reported_and_the_frames_behind_it_are_read(
    tmp_path: Path, at: int
) -> None:
    """Any byte of the frame may change: magic bytes, length, checksum, payload."""
    path = write(tmp_path, b"a" * 40, b"b" * 40, b"c" * 40)
    _, second, third = read(path)
    data = bytearray(path.read_bytes())
    data[second.offset + at] ^= 0xFF
    path.write_bytes(data)

    found = read(path)

    assert frames_in(path) == ["req_1", "req_3"]
    assert found[1] == Damage(second.offset, third.offset, torn=False)


def test_damage_larger_than_a_block_is_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path, b"a", os.urandom(3 * segments.BLOCK_BYTES), b"c")
    _, second, _ = read(path)
    data = bytearray(path.read_bytes())
    data[second.offset] ^= 0xFF
    path.write_bytes(data)

    assert frames_in(path) == ["req_1", "req_3"]


def test_magic_bytes_inside_damage_are_no_frame(tmp_path: Path) -> None:
    path = write(tmp_path, b"a", segments.FRAME_MAGIC * 5, b"c")
    _, second, _ = read(path)
    data = bytearray(path.read_bytes())
    data[second.offset] ^= 0xFF
    path.write_bytes(data)

    assert frames_in(path) == ["req_1", "req_3"]


def test_failed_write_is_cut_off_and_the_synced_frames_stay(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    segment = Segment(tmp_path, 1, WRITER)
    segment.append([segments.encode_frame(1, 0.0, 0, "req_1", b"x")])
    disk.full = True

    with pytest.raises(OSError, match="No space"):
        segment.append([segments.encode_frame(2, 0.0, 0, "req_2", b"x" * 999)])
    assert segment.path.stat().st_size > segment.synced
    segment.abandon()

    assert segment.path.stat().st_size == segment.synced
    assert frames_in(segment.path) == ["req_1"]


def test_segment_that_cannot_be_synced_leaves_no_file(tmp_path: Path, disk: FaultyDisk) -> None:
    disk.failing_syncs = 1

    with pytest.raises(OSError, match="Input/output error"):
        Segment(tmp_path, 1, WRITER)

    assert segments.numbers_in(tmp_path) == []


def test_segment_without_a_frame_is_removed_when_it_is_closed(tmp_path: Path) -> None:
    Segment(tmp_path, 1, WRITER).close()

    assert segments.numbers_in(tmp_path) == []


def test_segment_never_replaces_another_one(tmp_path: Path) -> None:
    write(tmp_path, b"a")

    with pytest.raises(FileExistsError):
        Segment(tmp_path, 1, WRITER)


def test_segment_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    assert write(tmp_path, b"a").stat().st_mode & 0o777 == 0o600


def test_numbers_are_those_of_segments_and_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    for name in ("000000000010.segment", "000000000009.segment", "old.segment", "watermark.json"):
        (tmp_path / name).touch()

    assert segments.numbers_in(tmp_path) == [9, 10]
    assert segments.next_number(tmp_path) == 11
    with pytest.raises(FileNotFoundError):
        segments.next_number(tmp_path / "gone")
