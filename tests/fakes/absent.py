"""What a test needs and this machine lacks: a desk goes on without it, CI does not."""

import os
import warnings
from typing import NoReturn

import pytest


def absent(what: str) -> NoReturn:
    """Skips the test, and says so loudly. ``.ci/run`` installs everything, so CI fails instead."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} (CI must have it: see .ci/run)")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn(what, stacklevel=2)
    pytest.skip(what)
