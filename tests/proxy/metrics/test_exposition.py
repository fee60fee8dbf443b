"""The text of /metrics."""

import re
import shutil
import subprocess

import pytest

from proxy.metrics.definitions import (
    COST_USD,
    METRICS,
    NOTES,
    OVERHEAD_SECONDS,
    REQUEST_SECONDS,
    UNKNOWN_EVENTS,
)
from proxy.metrics.exposition import exposition
from tests.fakes.optional_tools import skip_or_fail

from .samples import samples


def test_a_counter_has_the_sum_of_its_increments():
    NOTES.labels("dropped", "sum").inc()
    NOTES.labels("dropped", "sum").inc(2)
    COST_USD.labels("sum", "openai", "gpt").inc(0.000_000_062)

    found = samples()

    assert found['bridge_notes_total{fate="dropped",field="sum"}'] == 3
    cost = found['bridge_cost_usd_total{model="gpt",team="sum",upstream="openai"}']
    assert cost == 0.000_000_062


def test_a_bucket_of_a_histogram_counts_the_values_up_to_its_bound():
    before = samples()
    for seconds in (0.001, 0.002, 0.3, 99):
        OVERHEAD_SECONDS.observe(seconds)
    after = samples()
    added = {name: value - before.get(name, 0) for name, value in after.items()}

    assert added['bridge_overhead_seconds_bucket{le="0.001"}'] == 1  # includes the bound itself
    assert added['bridge_overhead_seconds_bucket{le="0.0025"}'] == 2
    assert added['bridge_overhead_seconds_bucket{le="0.5"}'] == 3
    assert added['bridge_overhead_seconds_bucket{le="+Inf"}'] == 4
    assert added["bridge_overhead_seconds_count{}"] == 4
    assert added["bridge_overhead_seconds_sum{}"] == pytest.approx(99.303)


def test_each_metric_has_help_and_type_also_before_its_first_value():
    lines = exposition().decode().splitlines()

    for metric in METRICS:
        assert f"# HELP {metric.full_name} {metric.family.documentation}" in lines
        assert f"# TYPE {metric.full_name} {metric.family.type}" in lines


def test_no_other_metric_is_reported():
    reported = {line.split()[2] for line in exposition().decode().splitlines() if line[0] == "#"}

    assert reported == {metric.full_name for metric in METRICS}


def test_promtool_accepts_the_text():
    promtool = shutil.which("promtool")
    if promtool is None:
        skip_or_fail(
            "NO promtool HERE (Debian: prometheus): the text was read by prometheus_client only"
        )
    REQUEST_SECONDS.labels("messages", "openai").observe(0.5)
    UNKNOWN_EVENTS.labels("chat", 'a "quoted" \\ kind').inc()

    run = subprocess.run(  # noqa: S603 - our own command line
        [promtool, "check", "metrics"], input=exposition(), capture_output=True, check=False
    )

    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")


def test_names_and_buckets_follow_prometheus_conventions():
    for metric in METRICS:
        assert metric.full_name.startswith("bridge_")
        assert (metric.family.type == "counter") == metric.full_name.endswith("_total")
        is_duration = re.search("(?<!_timestamp)_seconds$", metric.full_name) is not None
        assert (metric.family.type == "histogram") == is_duration
