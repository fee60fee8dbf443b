"""How hard properties are tried: a name in ``LAWS``, else ``push`` in CI and ``desk`` elsewhere.

A push is judged by the same examples as the one before it, so that what fails is what was changed;
new examples are sought at a desk and before a release.
"""

import os
from typing import Any, Final

from hypothesis import HealthCheck, settings

EXAMPLES: Final = {"push": 500, "desk": 200, "few": 20, "release": 20_000}
"""For each property, by profile."""

LAW_EXAMPLES: Final = {**EXAMPLES, "push": 5_000, "release": 200_000}
"""For each of the translator's laws, which everything else rests on."""

PROFILE: Final = os.environ.get("LAWS") or ("push" if os.environ.get("CI") == "true" else "desk")

# A deadline per example, or a health check that it is quick, would be an assertion about the machine.
ANY_PACE: Final[dict[str, Any]] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
}
SAME: Final[dict[str, Any]] = {**ANY_PACE, "derandomize": True}

settings.register_profile("push", max_examples=EXAMPLES["push"], print_blob=True, **SAME)
settings.register_profile("desk", max_examples=EXAMPLES["desk"], **ANY_PACE)
settings.register_profile("few", max_examples=EXAMPLES["few"], **SAME)
settings.register_profile("release", max_examples=EXAMPLES["release"], print_blob=True, **ANY_PACE)
settings.load_profile(PROFILE)

law: Final = settings(max_examples=LAW_EXAMPLES[PROFILE])
"""Marks a property as a law; goes above ``@given``."""
