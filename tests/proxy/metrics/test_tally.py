"""Sums, and the text that Prometheus reads."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.metrics import catalogue as c
from proxy.metrics.tally import MOST_SERIES, OTHER, Tally, exposition

ROW = ("messages", "claude-*", "openai", "completed", "200")


def samples(tally: Tally) -> dict[tuple[str, tuple[str, ...]], float]:
    """As a Prometheus server would read it: name, label values in order of names, value."""
    text = "\n".join(exposition(tally.series)) + "\n"
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_counter_is_read_as_it_was_added():
    tally = Tally()
    tally.add(c.REQUESTS, ROW)
    tally.add(c.REQUESTS, ROW, 2)
    tally.add(c.COST, ("platform", "openai", "gpt"), 0.000_000_062)

    read = samples(tally)

    assert read["bridge_requests_total", tuple(sorted_by_name(c.REQUESTS, ROW))] == 3
    assert read["bridge_cost_usd_total", ("gpt", "platform", "openai")] == 0.000_000_062


def sorted_by_name(metric, labels):
    return [value for _, value in sorted(zip(metric.labels, labels, strict=True))]


def test_a_histogram_counts_up_to_each_bound():
    tally = Tally()
    for seconds in (0.001, 0.002, 0.3, 99):
        tally.observe(c.OVERHEAD, seconds)

    read = samples(tally)

    assert read["bridge_overhead_seconds_bucket", ("0.001",)] == 1  # a bound holds its own value
    assert read["bridge_overhead_seconds_bucket", ("0.0025",)] == 2
    assert read["bridge_overhead_seconds_bucket", ("0.5",)] == 3
    assert read["bridge_overhead_seconds_bucket", ("+Inf",)] == 4
    assert read["bridge_overhead_seconds_count", ()] == 4
    assert read["bridge_overhead_seconds_sum", ()] == pytest.approx(99.303)


@pytest.mark.parametrize("hostile", ['say "no"', "back\\slash", "two\nlines", "\x00\x1b[31m", "é"])
def test_a_label_may_hold_anything(hostile):
    tally = Tally()
    tally.add(c.UNKNOWN, ("chat", hostile))

    [(name, (dialect, kind))] = samples(tally)

    assert (name, dialect) == ("bridge_unknown_events_total", "chat")
    assert kind.isprintable()


def test_labels_that_others_choose_do_not_fill_the_memory():
    tally = Tally()
    for number in range(MOST_SERIES + 50):
        tally.add(c.UNKNOWN, ("chat", f"kind-{number}" + "x" * 500))

    series = tally.series[c.UNKNOWN.name]

    assert len(series) == MOST_SERIES + 1
    assert series[OTHER, OTHER] == [50]
    assert max(len(text) for labels in series for text in labels) == 100


def test_a_sum_of_two_workers_is_exact():
    one, two = Tally(), Tally()
    for tally, times in ((one, 3), (two, 4)):
        for _ in range(times):
            tally.add(c.REQUESTS, ROW)
            tally.observe(c.FIRST_BYTE, 0.2, ("openai",))
    total = Tally()

    total.merge(one.series)
    total.merge(two.series)

    assert total.series[c.REQUESTS.name][ROW] == [7]
    assert total.series[c.FIRST_BYTE.name]["openai",][-1] == 7


def test_what_another_version_wrote_is_passed_over():
    tally = Tally()

    tally.merge({"bridge_old_total": {(): [1.0]}, c.REQUESTS.name: {("short",): [1.0]}})

    assert samples(tally) == {}
