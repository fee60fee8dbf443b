"""Everything that is left to chance, from one seed."""

import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


class Chance(random.Random):
    """``buggify``: does this rare thing happen now? Like FoundationDB's, each kind of trouble is
    on in some worlds only, so that some worlds have much of one kind and some have none."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._troubles: dict[str, float] = {}

    def buggify(self, name: str, often: float = 0.1) -> bool:
        if name not in self._troubles:
            self._troubles[name] = often if self.random() < 0.5 else 0.0
        return self.random() < self._troubles[name]

    def pieces(self, raw: bytes, most: int = 12) -> list[bytes]:
        """Cut anywhere."""
        count = min(most, max(0, len(raw) - 1))
        cuts = sorted({self.randrange(1, len(raw)) for _ in range(self.randint(0, count))})
        return [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]

    def one_of(self, items: Sequence[Item]) -> Item:
        return items[self.randrange(len(items))]
