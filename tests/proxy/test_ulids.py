"""Ids of requests: ULIDs that any library reads."""

import os
import time

from ulid import ULID

from proxy.ulids import ALPHABET, NAMES_AHEAD, new_ulid


def test_it_is_a_ulid_of_this_moment():
    before = time.time_ns() // 1_000_000
    name = new_ulid()
    after = time.time_ns() // 1_000_000

    read = ULID.from_str(name)
    assert str(read) == name
    assert before <= read.milliseconds <= after


def test_no_two_are_the_same_and_later_ones_sort_behind():
    names = [new_ulid() for _ in range(20 * NAMES_AHEAD)]

    assert len(set(names)) == len(names)
    times = [name[:10] for name in names]
    assert times == sorted(times)


def test_every_character_of_chance_is_drawn():
    """Of 102,400 characters the rarest is missing with a chance of 10 to the power of -1,400."""
    drawn = {character for _ in range(100 * NAMES_AHEAD) for character in new_ulid()[10:]}

    assert drawn == set(ALPHABET.decode())


def test_a_forked_process_makes_other_names():
    new_ulid()
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.write(theirs, new_ulid()[10:].encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(ours, 64).decode()
    os.close(ours)
    os.close(theirs)

    assert len(said) == 16
    assert said not in {new_ulid()[10:] for _ in range(2 * NAMES_AHEAD)}
