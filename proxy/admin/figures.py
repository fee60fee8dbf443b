"""Numbers as people read them. Unknown is said, never shown as zero."""

from decimal import Decimal
from typing import Final

from proxy.models import Exchange, State

NANO: Final = Decimal(10) ** 9
UNKNOWN: Final = "—"


def dollars(nanousd: int | None) -> str:
    """Money to a person's eye: cents and above with 2 places, less with what it needs."""
    if nanousd is None:
        return "no price"
    amount = Decimal(nanousd) / NANO
    if amount == 0:
        return "$0"
    if abs(amount) >= 1:
        return f"${amount:,.2f}"
    return f"${amount:.4f}" if abs(amount) >= Decimal("0.001") else f"${amount:.6f}"


def unpriced(row: Exchange) -> bool:
    """It used tokens that nobody can put a price on."""
    used = row.input_tokens is not None or row.output_tokens is not None
    return used and row.cost_nanousd is None and row.state == State.CLOSED


def cost_of(row: Exchange) -> str:
    """Unknown while it runs, and where nobody counted anything."""
    if row.state == State.OPEN:
        return "…"
    return UNKNOWN if row.cost_nanousd is None and not unpriced(row) else dollars(row.cost_nanousd)


def duration(ms: float | None) -> str:
    if ms is None:
        return UNKNOWN
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(round(ms / 1000), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def short_count(count: int | None) -> str:
    if count is None:
        return UNKNOWN
    if count < 10_000:
        return f"{count:,}"
    if count < 1_000_000:
        return f"{count / 1000:.1f}k"
    return f"{count / 1_000_000:.2f}M"


def percent(part: int, whole: int) -> str:
    if not whole:
        return "0 %"
    found = 100 * part / whole
    return f"{found:.0f} %" if found >= 10 or found == 0 else f"{found:.1f} %"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def size(count: int) -> str:
    if count < 1024:
        return f"{count} bytes"
    for unit, whole in (("KiB", 1024), ("MiB", 1024**2)):
        if count < 1024 * whole:
            return f"{count / whole:.1f} {unit}"
    return f"{count / 1024**3:.1f} GiB"


def share(read: int | None, fresh: int | None) -> str:
    """How much of what was sent came from a cache."""
    whole = (read or 0) + (fresh or 0)
    return f"{100 * (read or 0) / whole:.0f} %" if whole else UNKNOWN
