"""The pauses of the configuration in memory, and which targets of a route they leave."""

import fnmatch
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from proxy.models import Pause

from .targets import SAME_MODEL, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseEntry:
    """One pause. An empty ``upstream`` or ``model`` means every one; ``ends`` in Unix seconds."""

    name: str
    upstream: str
    model: str
    message: str
    ends: float = math.inf

    @classmethod
    def of(cls, pause: Pause) -> Self:
        return cls(
            name=str(pause),
            upstream=pause.upstream.name if pause.upstream else "",
            model=pause.model,
            message=pause.message,
            ends=pause.ends.timestamp() if pause.ends else math.inf,
        )

    def covers(self, target: Target, model: str) -> bool:
        """Return whether the pause covers a target for the requested model."""
        if self.upstream and self.upstream != target.server.name:
            return False
        names = (model,) if target.model in SAME_MODEL else (model, target.model)
        return not self.model or any(fnmatch.fnmatchcase(name, self.model) for name in names)


def pause_of(pauses: Iterable[PauseEntry], target: Target, model: str) -> PauseEntry | None:
    """Return the pause in effect that covers the target; None if there is none."""
    now = time.time()
    covering = (pause for pause in pauses if pause.ends > now and pause.covers(target, model))
    return next(covering, None)
