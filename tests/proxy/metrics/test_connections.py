"""Closed client connections: each is counted, few are logged."""

from types import SimpleNamespace

import pytest

from proxy.metrics import connections

from .samples import samples

SAMPLE = 'bridge_connections_closed_total{reason="test_flood"}'


@pytest.fixture
def clock(monkeypatch):
    times = [100.0]
    # A minute passes.
    monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: times[-1]))
    return times


def test_a_flood_is_counted_and_logged_once_a_minute(clock, caplog):
    before = samples().get(SAMPLE, 0)
    for _ in range(5):
        connections.count_closed("test_flood", "192.0.2.1")
    clock.append(clock[-1] + connections.LOG_INTERVAL_S)
    connections.count_closed("test_flood", None)

    assert samples()[SAMPLE] - before == 6
    assert [record.args for record in caplog.records] == [
        ("test_flood", 1, "192.0.2.1"),
        ("test_flood", 5, "an unknown address"),
    ]
