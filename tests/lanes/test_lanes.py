"""The lanes select tests by marker, and tests get the numbers of the lane that runs."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import lanes
from tests.conftest import GATEWAY_THREADS
from tests.fakes.forked_python import ForkedProcess
from tests.lanes import hypothesis_profiles, repeat, time_limit

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


def test_option_m_selects_the_tests_of_the_lane(slow_run):
    lanes_of_tests = {ONLY_SLOW, ONLY_FAST, REPEATED, PROPERTY}
    ran = set(re.findall(r"::(\w+) PASSED", slow_run))

    assert collected() & lanes_of_tests == {ONLY_FAST, REPEATED, PROPERTY}
    assert ran & lanes_of_tests == {ONLY_SLOW, REPEATED, PROPERTY}


@pytest.fixture(scope="module")
def slow_run() -> str:
    """The output of a run of the slow tests of this file."""
    return run_pytest("-m", "slow", "--minutes", "5")


@pytest.mark.parametrize(
    ("markers", "slow"),
    [("slow", True), ("slow and hypothesis", True), ("not slow", False), ("hypothesis", False),
     ("", False), ("hypothesis and not slow", False)],
)  # fmt: skip
def test_only_an_expression_that_selects_slow_tests_chooses_the_slow_lane(markers, slow):
    assert bool(lanes.SELECTS_SLOW.search(markers)) is slow


def test_no_test_starts_after_the_time_limit_and_the_report_counts_them():
    output = run_pytest("-m", "slow", "--minutes", "0")

    assert re.search(
        r"seconds +ran +failed +left\n +0\.0 +0 +0 +3  tests/lanes/test_lanes\.py", output
    )


def test_report_counts_the_tests_that_ran(slow_run):
    assert re.search(r"[\d.]+ +3 +0 +0  tests/lanes/test_lanes\.py", slow_run)


@pytest.mark.parametrize("size", [1, 2, 6, 7, 8, 100])
def test_each_file_is_early_on_one_day_of_a_week(size):
    items = [
        SimpleNamespace(nodeid=f"test_{n}.py::test_{half}") for n in range(size) for half in "ab"
    ]
    reached = -(-size // time_limit.STEP) * 2  # tests of each day

    days = [time_limit.rotated(items, day) for day in range(739_000, 739_007)]

    assert {item.nodeid for day in days for item in day[:reached]} == {
        item.nodeid for item in items
    }
    assert all(sorted(day, key=items.index) == items for day in days)


def collected() -> set[str]:
    """Return the names of the tests of this file that pytest selects without options."""
    lines = run_pytest("--collect-only", "-q").splitlines()
    return {line.split("::")[1] for line in lines if "::" in line}


def run_pytest(*options: str) -> str:
    """Run pytest on this file with these options; return its output."""
    done = subprocess.run(  # noqa: S603 - our own command line
        [sys.executable, "-m", "pytest", *options, __file__],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_forked_process_that_has_ended_before_it_is_read_has_its_id_and_exit_code():
    """The id and the exit code arrive together if pytest is suspended meanwhile."""
    reads, writes = os.pipe()
    os.write(writes, b"32393\n3\n")
    os.close(writes)

    process = ForkedProcess(reads)

    assert (process.pid, process.poll(), process.wait(1)) == (32393, 3, 3)


@pytest.mark.parametrize("name", sorted(GATEWAY_THREADS))
def test_a_thread_that_no_test_file_may_leave_has_the_name_that_the_gateway_gives_it(name):
    sources = (REPOSITORY / "proxy").rglob("*.py")

    assert any(f'name="{name}"' in path.read_text(encoding="utf-8") for path in sources)
