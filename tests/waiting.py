"""Wait for a fact instead of a time: poll a condition until it is true."""

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")
POLL_S = 0.02


def until(
    condition: Callable[[], Value],
    failure: str | Callable[[], object] = "the condition is not met",
    *,
    within_s: float = 90,
) -> Value:
    """Poll until the condition is true and return its value; fail after ``within_s`` seconds.

    ``failure``: the text of the failure, or a function that returns what to show.
    """
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            shown = failure() if callable(failure) else failure
            raise AssertionError(f"after {within_s} s: {shown}")
        time.sleep(POLL_S)
    return value
