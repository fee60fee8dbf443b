"""The source of all random decisions, from one seed."""

import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


class SeededRandom(random.Random):
    """A random generator with fault injection.

    ``buggify`` decides whether a rare event happens now. As in FoundationDB, each kind of event is
    enabled in half of the worlds only, so that some worlds have many of a kind and some have none.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._probabilities: dict[str, float] = {}

    def buggify(self, name: str, probability: float = 0.1) -> bool:
        if name not in self._probabilities:
            self._probabilities[name] = probability if self.random() < 0.5 else 0.0
        return self.random() < self._probabilities[name]

    def pieces(self, raw: bytes, maximum: int = 12) -> list[bytes]:
        """Cut ``raw`` at random places."""
        count = min(maximum, max(0, len(raw) - 1))
        cuts = sorted({self.randrange(1, len(raw)) for _ in range(self.randint(0, count))})
        return [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]

    def pick(self, items: Sequence[Item]) -> Item:
        return items[self.randrange(len(items))]
