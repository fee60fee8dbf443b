"""Mutate bytes by seed: changed bytes, cuts, repetitions, splices and inserted tokens."""

import random
from collections.abc import Sequence

TOKENS = (
    b"null", b"true", b"-1", b"1e308", b"99999999999999999999", b'""', b"[]", b"{}", b"\\u0000", b"\\ud800", b'"type"', b'"index"', b"\xff",
    b"\n\n", b"\r", b"data: ", b"event: error\n", b"[DONE]", b'"delta"', b'"error"', b'"usage"', b'"finish_reason"', b'"arguments"', b'"content"',
    b'"role"', b'"tool_use"', b'"output_index"', b"\xed\xa0\x80", b"\xf0\x9f\x92", b"0", b",", b":", b'"', b"\\",
)  # fmt: skip


def mutated(raw: bytes, seed: int, others: Sequence[bytes]) -> bytes:
    """Return a mutation of ``raw``; ``others`` are inputs of the same kind for splices."""
    rng = random.Random(seed)  # noqa: S311 - seeded for repeatable tests
    result = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        position = rng.randrange(len(result) + 1)
        match rng.randrange(6):
            case 0 if result:
                result[position % len(result)] = rng.randrange(256)
            case 1:
                del result[position : position + rng.randint(1, 30)]
            case 2:
                result[position:position] = rng.choice(TOKENS)
            case 3:
                result[position:position] = result[position : position + rng.randint(1, 60)]
            case 4 if others:
                other = rng.choice(others)
                cut = rng.randrange(len(other) + 1)
                result[position:] = other[cut:]
            case _:
                end = position + rng.randint(1, 12)
                result[position:end] = rng.choice(TOKENS)
    return bytes(result)
