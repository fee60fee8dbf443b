"""How this process asks the system for memory: large bodies go back to it when they are done.

glibc gives a large block pages of its own, which go back at once. But each such block that is freed
raises the size from which it does so, and each thread has a heap of its own; so bodies end up among
small things that live on, and their space stays with us.
Figure: 100 streams whose bodies were 400 KB took 280 and 190 KB each at the peak, above idle, with
one and both of these set, and 760 without.
"""

import ctypes
import sys
from typing import Final

# From malloc.h; a size or number that is set no longer moves.
MMAP_THRESHOLD: Final = -3
ARENA_MAX: Final = -8

SETTINGS: Final = {
    MMAP_THRESHOLD: 128 * 1024,  # bytes: what glibc begins with
    ARENA_MAX: 2,  # heaps: threads take turns by Python's lock anyway
}


def settle() -> None:
    """Before there are threads. Without glibc nothing happens."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for name, number in SETTINGS.items():
            mallopt(name, number)
