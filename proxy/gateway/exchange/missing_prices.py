"""Models without a known price, which /readyz lists. The cost of their requests is null."""

from typing import Final

MAX_MODELS: Final = 50

unpriced_models: Final[dict[tuple[str, str], None]] = {}


def add(upstream: str, model: str) -> None:
    """Add a model, with the dimensions that need a price, such as ``speed=fast``.

    Above ``MAX_MODELS`` models, the oldest is removed until its next request.
    """
    if (upstream, model) not in unpriced_models:
        unpriced_models[upstream, model] = None
        if len(unpriced_models) > MAX_MODELS:
            unpriced_models.pop(next(iter(unpriced_models)), None)


def remove(upstream: str, model: str) -> None:
    """Remove a model whose price is known now."""
    if unpriced_models:
        unpriced_models.pop((upstream, model), None)


def names() -> list[str]:
    """Return the models as sorted strings of the form ``upstream model``."""
    return sorted(" ".join(key) for key in unpriced_models)
