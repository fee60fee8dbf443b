"""How many connections a worker takes, from whom, and what stays free of them."""

import pytest

from proxy.config.connection_limits import RESERVED, ConnectionLimits, client_of, most_connections

PROXIES = ("10.0.0.0/8", "2001:db8:ffff::/48")


@pytest.mark.parametrize(
    ("files", "most"),
    [(1_048_576, 16_384), (20_000, 9_904), (1_024, 416), (RESERVED + 40, 20), (64, 16)],
)
def test_half_of_the_file_limit_beside_the_reserve_belongs_to_clients(files, most):
    assert most_connections(files, 16_384) == most
    if files > RESERVED + 32:
        assert 2 * most + RESERVED <= files


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
def test_whom_a_connection_is_counted_under(address, client):
    assert client_of(address, PROXIES) == client


def test_an_address_takes_its_share_and_no_more():
    limits = ConnectionLimits(total=10, each=3)

    taken = [limits.take("192.0.2.1") for _ in range(5)]
    assert taken == [None, None, None, "address", "address"]
    assert limits.take("192.0.2.2") is None

    limits.give_back("192.0.2.1")
    assert limits.take("192.0.2.1") is None
    assert limits.take("192.0.2.1") == "address"


def test_one_address_never_takes_all():
    limits = ConnectionLimits(total=8, each=1_000)

    assert [limits.take("192.0.2.1") for _ in range(7)].count(None) == 6
    assert [limits.take("192.0.2.2") for _ in range(3)] == [None, None, "total"]


def test_a_trusted_proxy_has_no_share_but_the_total_holds():
    limits = ConnectionLimits(total=4, each=1, trusted=PROXIES)

    assert [limits.take("10.0.0.1") for _ in range(5)] == [None, None, None, None, "total"]
    for _ in range(4):
        limits.give_back("10.0.0.1")
    assert limits.take("192.0.2.1") is None
    assert limits.take("192.0.2.1") == "address"


def test_who_has_left_is_not_remembered():
    limits = ConnectionLimits(total=4, each=2)
    for n in range(100):
        assert limits.take(f"192.0.2.{n}") is None
        limits.give_back(f"192.0.2.{n}")

    assert not limits._by_client
    assert limits._open == 0
