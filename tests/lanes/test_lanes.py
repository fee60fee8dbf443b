"""The lanes select tests by marker, and tests get the numbers of the lane that runs."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import lanes
from tests.lanes import hypothesis_profiles, repeat

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.slow
def test_slow_test_runs_only_in_the_slow_lane():
    assert lanes.is_slow()


def test_ordinary_test_runs_only_in_the_fast_lane():
    assert not lanes.is_slow()


@pytest.mark.repeated
def test_repeated_test_gets_the_number_of_the_lane():
    assert repeat(fast=1, slow=2) == (2 if lanes.is_slow() else 1)


@given(example=st.integers())
def test_property_has_the_examples_of_the_lane(example):
    profile = hypothesis_profiles.profile()

    assert settings.default.max_examples == hypothesis_profiles.EXAMPLES[profile]


def test_environment_variable_overrides_the_number(monkeypatch):
    monkeypatch.setenv("BRIDGE_TEST_NUMBER", "7")

    assert repeat(fast=1, slow=2, variable="BRIDGE_TEST_NUMBER") == 7


ONLY_SLOW = "test_slow_test_runs_only_in_the_slow_lane"
ONLY_FAST = "test_ordinary_test_runs_only_in_the_fast_lane"
REPEATED = "test_repeated_test_gets_the_number_of_the_lane"
PROPERTY = "test_property_has_the_examples_of_the_lane"


@pytest.mark.parametrize(
    ("options", "selected"),
    [((), {ONLY_FAST, REPEATED, PROPERTY}), (("-m", "slow"), {ONLY_SLOW, REPEATED, PROPERTY})],
)
def test_option_m_selects_the_tests_of_the_lane(options, selected):
    assert collected(*options) & {ONLY_SLOW, ONLY_FAST, REPEATED, PROPERTY} == selected


@pytest.mark.parametrize(
    ("markers", "slow"),
    [("slow", True), ("slow and hypothesis", True), ("not slow", False), ("hypothesis", False),
     ("", False), ("hypothesis and not slow", False)],
)  # fmt: skip
def test_only_an_expression_that_selects_slow_tests_chooses_the_slow_lane(markers, slow):
    assert bool(lanes.SELECTS_SLOW.search(markers)) is slow


def collected(*options: str) -> set[str]:
    """Return the names of the tests of this file that pytest selects with these options."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *options, __file__]
    done = subprocess.run(  # noqa: S603 - our own command line
        command, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.split("::")[1] for line in done.stdout.splitlines() if "::" in line}
