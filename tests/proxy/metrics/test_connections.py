"""Closed client connections: each is counted, few are logged."""

import time

from proxy.metrics import connections

from .samples import samples

SAMPLE = 'bridge_connections_closed_total{reason="test_flood"}'


def test_a_flood_is_counted_and_logged_once_a_minute(caplog):
    before, first = samples().get(SAMPLE, 0), time.monotonic()
    for second in range(5):
        connections.count_closed("test_flood", "192.0.2.1", first + second)
    connections.count_closed("test_flood", None, first + connections.LOG_INTERVAL_S)

    assert samples()[SAMPLE] - before == 6
    assert [record.args for record in caplog.records] == [
        ("test_flood", 1, "192.0.2.1"),
        ("test_flood", 5, "an unknown address"),
    ]
