"""Format numbers for admin pages. An unknown value is never shown as zero."""

from decimal import Decimal
from typing import Final

from proxy.money import NANO

UNKNOWN: Final = "—"


def dollars(nanousd: int | None) -> str:
    """Format nano-dollars with 2 decimals, or 4 or 6 below one dollar; None becomes "no price"."""
    if nanousd is None:
        return "no price"
    amount = Decimal(nanousd) / NANO
    if amount == 0:
        return "$0"
    if abs(amount) >= 1:
        return f"${amount:,.2f}"
    return f"${amount:.4f}" if abs(amount) >= Decimal("0.001") else f"${amount:.6f}"


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
    value = 100 * part / whole
    return f"{value:.0f} %" if value >= 10 or value == 0 else f"{value:.1f} %"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def size(count: int) -> str:
    if count < 1024:
        return f"{count} bytes"
    for unit, whole in (("KiB", 1024), ("MiB", 1024**2)):
        if count < 1024 * whole:
            return f"{count / whole:.1f} {unit}"
    return f"{count / 1024**3:.1f} GiB"


def cache_percent(cached: int | None, uncached: int | None) -> str:
    """Return the percentage of the input tokens that were read from the prompt cache, as text."""
    whole = (cached or 0) + (uncached or 0)
    return f"{100 * (cached or 0) / whole:.0f} %" if whole else UNKNOWN
