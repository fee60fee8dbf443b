"""Bodies that were refused for what they say: kept as they came, as far as there is room for such.

They are refused before anything limits how many there are, so a client that repeats one without
end must not fill the disk. And nobody knows what is in them: they are never taken for a request.
"""

import time
from typing import TYPE_CHECKING, Final

from translator.notes import Note

from .limits import Bucket

if TYPE_CHECKING:
    from .ledger import Exchange

MOST_BYTES: Final = 2**20  # of one
BYTES_A_MINUTE: Final = 4 * 2**20
"""Of all that one worker refuses: 5.8 GB a day at most."""
NO_ROOM: Final = Note("body", "dropped", "of what is refused, more came than is kept")

_room: Final = Bucket(BYTES_A_MINUTE, BYTES_A_MINUTE, time.monotonic())


def kept_of(exchange: "Exchange", room: Bucket = _room) -> bytes | None:
    """The body, if it was at fault and is to be kept; where only the room lacks, a note says so."""
    body = exchange.faulty
    if not body or not exchange.caller.team.store_full:
        return None
    room.refill(time.monotonic())
    if len(body) > min(MOST_BYTES, room.left):
        exchange.remarks.append(NO_ROOM)
        return None
    room.left -= len(body)
    return body
