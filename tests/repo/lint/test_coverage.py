"""Check that deterministic tests reach every branch of the translator and of the critical modules.

The fast lane measures itself (tests/lanes/measurement.py). For a part of the tests, ask for it:
``pytest --coverage tests/translator tests/repo/lint/test_coverage.py -k 'not limits'``.
"""

from pathlib import Path

import pytest

from tests.lanes import measurement
from tests.lanes.measurement import CRITICAL, TRANSLATOR, Measurement


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Measurement:
    """Return the measurement of this run when all measured tests have run."""
    measuring = request.config.pluginmanager.get_plugin(measurement.NAME)
    if measuring is None:
        pytest.skip("only a whole run, or one with --coverage, measures the coverage")
    measuring.wait_for_all(sum(map(measurement.is_measured, request.session.items)))
    return measuring


@pytest.mark.timeout(600)
def test_the_cases_reach_every_branch_of_the_translator(measured: Measurement):
    assert len(TRANSLATOR) > 50
    missed = measured.missed(TRANSLATOR)
    assert not missed, "\n".join(missed)


@pytest.mark.timeout(600)
def test_the_tests_reach_every_branch_of_keys_limits_and_ledger(measured: Measurement):
    missed = measured.missed(CRITICAL)
    assert not missed, "\n".join(missed)


def test_a_module_that_is_only_imported_has_missed_branches(tmp_path: Path):
    [missed] = Measurement(tmp_path, "none").missed(["translator/translate.py"])

    assert missed.startswith("translator/translate.py: lines [")
