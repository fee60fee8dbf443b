"""Spoils bytes, the same for the same seed: flips, cuts, doubles, splices, and tokens that hurt."""

import random
from collections.abc import Sequence

TOKENS = (
    b"null", b"true", b"-1", b"1e308", b"99999999999999999999", b'""', b"[]", b"{}", b"\\u0000", b"\\ud800", b'"type"', b'"index"', b"\xff",
    b"\n\n", b"\r", b"data: ", b"event: error\n", b"[DONE]", b'"delta"', b'"error"', b'"usage"', b'"finish_reason"', b'"arguments"', b'"content"',
    b'"role"', b'"tool_use"', b'"output_index"', b"\xed\xa0\x80", b"\xf0\x9f\x92", b"0", b",", b":", b'"', b"\\",
)  # fmt: skip


def mutated(raw: bytes, seed: int, others: Sequence[bytes]) -> bytes:
    """``others``: of the same kind, to splice with."""
    chance = random.Random(seed)  # noqa: S311 - seeded on purpose
    made = bytearray(raw)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(made) + 1)
        match chance.randrange(6):
            case 0 if made:
                made[place % len(made)] = chance.randrange(256)
            case 1:
                del made[place : place + chance.randint(1, 30)]
            case 2:
                made[place:place] = chance.choice(TOKENS)
            case 3:
                made[place:place] = made[place : place + chance.randint(1, 60)]
            case 4 if others:
                other = chance.choice(others)
                cut = chance.randrange(len(other) + 1)
                made[place:] = other[cut:]
            case _:
                end = place + chance.randint(1, 12)
                made[place:end] = chance.choice(TOKENS)
    return bytes(made)
