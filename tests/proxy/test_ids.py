"""Ids of requests: ULIDs that every library can parse."""

import os
import time

from ulid import ULID

from proxy.ids import ALPHABET, IDS_PER_READ, new_ulid


def test_a_new_id_is_a_ulid_of_the_current_time():
    before = time.time_ns() // 1_000_000
    name = new_ulid()
    after = time.time_ns() // 1_000_000

    read = ULID.from_str(name)
    assert str(read) == name
    assert before <= read.milliseconds <= after


def test_ids_are_unique_and_sort_by_time():
    names = [new_ulid() for _ in range(20 * IDS_PER_READ)]

    assert len(set(names)) == len(names)
    times = [name[:10] for name in names]
    assert times == sorted(times)


def test_the_random_part_uses_every_character():
    """102,400 random characters miss one with a probability of about 10 to the power of -1,400."""
    used = {character for _ in range(100 * IDS_PER_READ) for character in new_ulid()[10:]}

    assert used == set(ALPHABET.decode())


def test_a_forked_process_generates_other_ids():
    new_ulid()
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.write(theirs, new_ulid()[10:].encode())
        os._exit(0)
    os.waitpid(child, 0)
    random_part = os.read(ours, 64).decode()
    os.close(ours)
    os.close(theirs)

    assert len(random_part) == 16
    assert random_part not in {new_ulid()[10:] for _ in range(2 * IDS_PER_READ)}
