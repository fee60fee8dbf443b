"""Two lanes of tests: the fast lane proves each promise once, the slow lane repeats.

``pytest`` runs the fast lane and ``pytest -m slow`` the slow lane.

- A test with the marker ``slow`` runs only in the slow lane.
- A test with the marker ``repeated``, and every property (Hypothesis), runs in both lanes. It takes
  its numbers from ``repeat``.
- All other tests run only in the fast lane.
"""

import os
import re
from typing import Final, Literal, TypeVar

Size = TypeVar("Size")

_running: Literal["fast", "slow"] = "fast"

SELECTS_SLOW: Final = re.compile(r"(?<!\bnot )\bslow\b")


def choose_lane(markers: str) -> None:
    """Choose the lane from the expression of pytest's option ``-m``, before test files are imported."""
    global _running  # noqa: PLW0603 - one process runs one lane
    _running = "slow" if SELECTS_SLOW.search(markers) else "fast"


def is_slow() -> bool:
    """Return True if the slow lane runs."""
    return _running == "slow"


def name() -> str:
    return _running


def repeat(*, fast: Size, slow: Size, variable: str = "") -> Size:
    """Return the number of repetitions (or a duration, or a list of cases) of the running lane.

    ``variable`` names an environment variable that overrides a number, for still longer runs.
    """
    given = os.environ.get(variable) if variable else None
    if given is not None:
        return type(fast)(given)  # type: ignore[call-arg]  # int, float or str
    return slow if is_slow() else fast
