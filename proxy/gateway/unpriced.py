"""What was answered without a known price: its cost is null, and /readyz says so."""

from typing import Final

MOST_KEPT: Final = 50

_seen: Final[dict[tuple[str, str], None]] = {}


def remember(upstream: str, model: str) -> None:
    """The oldest goes first: it was mended long ago, or is remembered anew with its next answer."""
    if (upstream, model) not in _seen:
        _seen[upstream, model] = None
        if len(_seen) > MOST_KEPT:
            _seen.pop(next(iter(_seen)), None)


def forget(upstream: str, model: str) -> None:
    """It has a price by now."""
    if _seen:
        _seen.pop((upstream, model), None)


def names() -> list[str]:
    """``upstream model``, as an operator would look for them."""
    return sorted(" ".join(key) for key in _seen)
