"""Decide whether to store a request body that was rejected as invalid.

Invalid requests are rejected before any rate limit applies. So their stored bodies have a separate
limit: a client that repeats an invalid request must not fill the disk. The bodies are stored as
opaque bytes and are never parsed as requests.
"""

import time
from typing import TYPE_CHECKING, Final

from proxy.gateway.admission.rate_limits import Bucket
from translator.notes import Note

if TYPE_CHECKING:
    from .request_context import RequestContext

MOST_BYTES: Final = 2**20  # the maximum size of one stored body
BYTES_A_MINUTE: Final = 4 * 2**20
"""The limit in bytes a minute for all stored bodies of one worker: at most 5.8 GB a day."""
NOT_STORED: Final = Note("body", "dropped", "the limit for stored rejected bodies is reached")

shared_room: Final = Bucket(BYTES_A_MINUTE, BYTES_A_MINUTE, time.monotonic())


def body_to_store(context: "RequestContext", room: Bucket = shared_room) -> bytes | None:
    """Return the rejected body if it is to be stored.

    If the limit is reached, add a note instead.
    """
    body = context.request.rejected_body
    if not body or not context.caller.team.store_full:
        return None
    room.refill(time.monotonic())
    if len(body) > min(MOST_BYTES, room.left):
        context.ending.notes.append(NOT_STORED)
        return None
    room.left -= len(body)
    return body
