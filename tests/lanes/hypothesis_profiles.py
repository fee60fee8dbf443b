"""The number of Hypothesis examples in each lane; ``LAWS=release`` draws more in either.

The fast lane uses the same examples each time, so that a failure is caused by the change. The slow
lane and releases draw new examples.
"""

import os
from collections.abc import Callable
from typing import Any, Final, TypeVar

from hypothesis import HealthCheck, settings

from tests import lanes

Test = TypeVar("Test", bound=Callable[..., Any])

EXAMPLES: Final = {"fast": 25, "slow": 500, "release": 20_000}
"""For each property, by profile."""

LAW_EXAMPLES: Final = {"fast": 50, "slow": 5_000, "release": 200_000}
"""For each law of the translator."""

# A deadline per example or a speed check would test the machine, not the code.
ANY_PACE: Final[dict[str, Any]] = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow],
}


def load_profile() -> None:
    """Load the profile of the running lane, before any property is defined."""
    for name, examples in EXAMPLES.items():
        settings.register_profile(
            name, max_examples=examples, derandomize=name == "fast", **ANY_PACE
        )
    settings.load_profile(profile())


def profile() -> str:
    """Return the name of the running lane, or ``release``."""
    return os.environ.get("LAWS") or lanes.repeat(fast="fast", slow="slow")


def law(test: Test) -> Test:
    """Mark a property as a law; place this decorator above ``@given``."""
    return settings(max_examples=LAW_EXAMPLES[profile()])(test)
