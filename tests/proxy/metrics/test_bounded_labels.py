"""Label values that clients and upstreams choose."""

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from proxy.metrics.bounded_labels import MAX_LABEL_CHARS, MAX_LABEL_SETS, OTHER, Counter


@pytest.fixture
def events() -> Counter:
    return Counter("events_total", "Events.", ("dialect", "kind"))


def values_of(counter: Counter) -> dict[tuple[str, str], float]:
    """As Prometheus reads them, by label values."""
    [family] = text_string_to_metric_families(generate_latest(counter).decode())
    return {(s.labels["dialect"], s.labels["kind"]): s.value for s in family.samples}


@pytest.mark.parametrize(
    ("hostile", "reported"),
    [
        ('a "quoted" word', 'a "quoted" word'),
        ("back\\slash", "back\\slash"),
        ("two\nlines", "two?lines"),
        ("\x00\x1b[31m", "??[31m"),
        ("é", "?"),
    ],
)
def test_a_label_value_may_contain_any_character(events, hostile, reported):
    for _ in range(2):
        events.labels("chat", hostile).inc()

    assert values_of(events) == {("chat", reported): 2}


def test_label_values_by_name_are_those_by_position(events):
    events.labels("chat", "new").inc()
    events.labels(kind="new", dialect="chat").inc()

    assert values_of(events) == {("chat", "new"): 2}


def test_label_values_cannot_fill_the_memory(events):
    for number in range(MAX_LABEL_SETS + 50):
        events.labels("chat", f"kind-{number}" + "x" * 500).inc()
    events.labels("chat", "kind-0" + "x" * 500).inc()

    values = values_of(events)

    assert len(values) == MAX_LABEL_SETS + 1
    assert values[OTHER, OTHER] == 50
    assert max(len(kind) for _, kind in values) == MAX_LABEL_CHARS
    assert values["chat", ("kind-0" + "x" * 500)[:MAX_LABEL_CHARS]] == 2
