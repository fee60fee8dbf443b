"""Tools that some tests need: where one is missing, a local run skips the test and CI fails."""

import os
import warnings
from typing import NoReturn

import pytest


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test with a warning; fail in CI, because ``.ci/run`` installs every tool."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason} (CI must have it: see .ci/run)")
    skip_loudly(reason)


def skip_loudly(reason: str) -> NoReturn:
    """Skip the test with a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn(reason, stacklevel=3)
    pytest.skip(reason)
