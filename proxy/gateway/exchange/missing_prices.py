"""Models without a known price, which /readyz lists. The cost of their requests is null."""

from typing import Final

MAX_MODELS: Final = 50

seen: Final[dict[tuple[str, str], None]] = {}


def add(upstream: str, model: str) -> None:
    """Add a model. Above ``MAX_MODELS`` models, the oldest is removed until its next request."""
    if (upstream, model) not in seen:
        seen[upstream, model] = None
        if len(seen) > MAX_MODELS:
            seen.pop(next(iter(seen)), None)


def remove(upstream: str, model: str) -> None:
    """Remove a model whose price is known now."""
    if seen:
        seen.pop((upstream, model), None)


def names() -> list[str]:
    """Return the models as sorted strings of the form ``upstream model``."""
    return sorted(" ".join(key) for key in seen)
