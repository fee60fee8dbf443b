"""Ways to cut a byte string into the pieces that a reader receives."""

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Literal

Cut = Literal["whole", "bytes", "lines"] | int
"""How to cut; an int is the seed for random cuts."""


def pieces(raw: bytes, cut: Cut) -> Iterator[bytes]:
    """Cut ``raw`` into pieces. Joined they equal ``raw``; no piece is empty."""
    match cut:
        case "whole":
            if raw:  # an empty chunk would end the body early
                yield raw
        case "bytes":
            yield from (raw[i : i + 1] for i in range(len(raw)))
        case "lines":
            yield from raw.splitlines(keepends=True)
        case seed:
            yield from _random_pieces(raw, random.Random(seed))  # noqa: S311 - a fixed seed makes the test repeatable


def _random_pieces(raw: bytes, rng: random.Random) -> Iterator[bytes]:
    # About one cut per 300 bytes, so that most cuts are inside an event and some inside a character;
    # at least three, so that short recordings are cut as well.
    cuts = min(max(3, len(raw) // 300), max(0, len(raw) - 1))
    places = sorted({0, len(raw), *rng.sample(range(1, max(2, len(raw))), cuts)})
    for start, end in pairwise(places):
        yield raw[start:end]
