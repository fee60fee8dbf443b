"""Ways to cut a byte string into the pieces that a reader gets to see."""

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Literal

Cut = Literal["whole", "bytes", "lines"] | int
"""How to cut; an int is the seed of random places."""


def pieces(raw: bytes, cut: Cut) -> Iterator[bytes]:
    """Cut ``raw``; the pieces joined are ``raw`` again, none is empty."""
    match cut:
        case "whole":
            if raw:  # an empty chunk would end a body, and its real end be a second answer
                yield raw
        case "bytes":
            yield from (raw[i : i + 1] for i in range(len(raw)))
        case "lines":
            yield from raw.splitlines(keepends=True)
        case seed:
            yield from _random_pieces(raw, random.Random(seed))  # noqa: S311 - seeded on purpose


def _random_pieces(raw: bytes, rng: random.Random) -> Iterator[bytes]:
    # About one cut in 300 bytes, so that most fall inside an event and some inside a character;
    # at least three, so that short recordings are cut as well.
    wanted = min(max(3, len(raw) // 300), max(0, len(raw) - 1))
    places = sorted({0, len(raw), *rng.sample(range(1, max(2, len(raw))), wanted)})
    for start, end in pairwise(places):
        yield raw[start:end]
