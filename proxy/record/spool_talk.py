"""What a gateway and the writer of its spool say to each other, over a pair of Unix sockets.

The gateway says records and jobs, each with a number of its own; the writer tells which landed.
Both ends are of one version and one machine, so this is no format that anybody keeps.
"""

from array import array
from struct import Struct
from typing import Final, NamedTuple

OPEN: Final = 0
CHUNK: Final = 1
CLOSE: Final = 2
JOB: Final = 3  # the name of a function of ``spool_file``, and its arguments as a JSON list

SAID: Final = Struct("<QBBdHI")
"""Number, kind, 1 where it is said again, Unix seconds, bytes of the id, bytes of the body."""
KIND_AT: Final = 8
AGAIN_AT: Final = 9  # where that 1 is
TOLD: Final = Struct("<BI")  # kind, bytes of what follows

LANDED: Final = 0  # numbers (uint64 each): they are on the disk
REFUSED: Final = 1  # numbers: they are not, because of the fault that was told before
FAULT: Final = 2  # why nothing is admitted; empty: all is well again
OPENED: Final = 3  # one number: the next free one
RESULT: Final = 4  # the number of a job, and {"is": …} or {"fault": "…"}
LOGGED: Final = 5  # JSON: level, text
READY: Final = 6  # nothing: the writer listens


class Said(NamedTuple):
    """One record or job, as the writer hears it."""

    number: int
    kind: int
    again: int
    at: float
    name: str  # of the exchange, or of the function
    body: bytes


def say(number: int, kind: int, at: float, name: str, body: bytes) -> bytes:
    """The bytes of one record or job. ``at``: Unix seconds."""
    named = name.encode()
    return SAID.pack(number, kind, 0, at, len(named), len(body)) + named + body


def say_again(said: bytes) -> bytes:
    """The same for a writer that may find it on the disk already."""
    return said[:AGAIN_AT] + b"\x01" + said[AGAIN_AT + 1 :]


def heard(buffer: bytearray) -> list[Said]:
    """The records and jobs that are whole in ``buffer``; they are taken out of it."""
    said, at, end = [], 0, len(buffer)
    with memoryview(buffer) as view:  # a slice of the buffer itself would be a copy more
        while end - at >= SAID.size:
            number, kind, again, when, named, size = SAID.unpack_from(view, at)
            body = at + SAID.size + named
            if body + size > end:
                break
            name = str(view[at + SAID.size : body], "utf-8")
            at = body + size
            said.append(Said(number, kind, again, when, name, bytes(view[body:at])))
    del buffer[:at]
    return said


def tell(kind: int, payload: bytes = b"") -> bytes:
    return TOLD.pack(kind, len(payload)) + payload


def numbers(some: list[int]) -> bytes:
    return array("Q", some).tobytes()


def numbers_of(payload: bytes) -> "array[int]":
    return array("Q", payload)


def told(raw: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """What the writer told: kind and payload of what is whole in ``raw``, and what is not."""
    answers, at, end = [], 0, len(raw)
    while end - at >= TOLD.size:
        kind, size = TOLD.unpack_from(raw, at)
        first = at + TOLD.size
        if first + size > end:
            break
        at = first + size
        answers.append((kind, raw[first:at]))
    return answers, raw[at:]
