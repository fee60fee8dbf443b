"""The number of Hypothesis examples by profile: ``LAWS`` names it, else ``push`` in CI, ``local`` elsewhere.

Every CI run uses the same examples, so that a failure is caused by the change. Local runs and
releases draw new examples.
"""

import os
from typing import Any, Final

from hypothesis import HealthCheck, settings

EXAMPLES: Final = {"push": 500, "local": 200, "few": 20, "release": 20_000}
"""For each property, by profile."""

LAW_EXAMPLES: Final = {**EXAMPLES, "push": 5_000, "release": 200_000}
"""For each law of the translator."""

PROFILE: Final = os.environ.get("LAWS") or ("push" if os.environ.get("CI") == "true" else "local")

# A deadline per example or a speed check would test the machine, not the code.
ANY_PACE: Final[dict[str, Any]] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
}
SAME: Final[dict[str, Any]] = {**ANY_PACE, "derandomize": True}

settings.register_profile("push", max_examples=EXAMPLES["push"], print_blob=True, **SAME)
settings.register_profile("local", max_examples=EXAMPLES["local"], **ANY_PACE)
settings.register_profile("few", max_examples=EXAMPLES["few"], **SAME)
settings.register_profile("release", max_examples=EXAMPLES["release"], print_blob=True, **ANY_PACE)
settings.load_profile(PROFILE)

law: Final = settings(max_examples=LAW_EXAMPLES[PROFILE])
"""Decorator that marks a property as a law; place it above ``@given``."""
