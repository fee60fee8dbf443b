"""Limits of client connections: in total, by address, and by the limit of open files."""

import pytest

from proxy.server.connection_limits import (
    RESERVED_FILES,
    ConnectionLimits,
    connection_limit,
    counted_client,
)

PROXIES = ("10.0.0.0/8", "2001:db8:ffff::/48")


@pytest.mark.parametrize(
    ("files", "expected"),
    [(1_048_576, 16_384), (20_000, 9_904), (1_024, 416), (RESERVED_FILES + 40, 20), (64, 16)],
)
def test_client_connections_get_half_of_the_unreserved_files(files, expected):
    assert connection_limit(files, 16_384) == expected
    if files > RESERVED_FILES + 32:
        assert 2 * expected + RESERVED_FILES <= files


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2::3", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::4", "2001:db8:1:2::/64"),
        ("10.1.2.3", None),
        ("::ffff:10.1.2.3", None),
        ("2001:db8:ffff::1", None),
        ("", ""),
        ("/run/bridge.sock", "/run/bridge.sock"),
    ],
)
def test_a_connection_is_counted_by_its_client_address(address, client):
    assert counted_client(address, PROXIES) == client


def test_an_address_above_its_limit_is_rejected():
    limits = ConnectionLimits(total=10, each=3)

    results = [limits.acquire("192.0.2.1") for _ in range(5)]
    assert results == [None, None, None, "address", "address"]
    assert limits.acquire("192.0.2.2") is None

    limits.release("192.0.2.1")
    assert limits.acquire("192.0.2.1") is None
    assert limits.acquire("192.0.2.1") == "address"


def test_one_address_cannot_use_all_connections():
    limits = ConnectionLimits(total=8, each=1_000)

    assert [limits.acquire("192.0.2.1") for _ in range(7)].count(None) == 6
    assert [limits.acquire("192.0.2.2") for _ in range(3)] == [None, None, "total"]


def test_a_trusted_proxy_is_limited_only_by_the_total():
    limits = ConnectionLimits(total=4, each=1, trusted=PROXIES)

    assert [limits.acquire("10.0.0.1") for _ in range(5)] == [None, None, None, None, "total"]
    for _ in range(4):
        limits.release("10.0.0.1")
    assert limits.acquire("192.0.2.1") is None
    assert limits.acquire("192.0.2.1") == "address"


def test_released_connections_leave_no_counter():
    limits = ConnectionLimits(total=4, each=2)
    for n in range(100):
        assert limits.acquire(f"192.0.2.{n}") is None
        limits.release(f"192.0.2.{n}")

    assert not limits.by_client
    assert limits.open_connections == 0
