"""Checks: the first that refuses decides, and what is unknown admits nobody."""

import dataclasses

import pytest

from proxy.counters.store import Standing, StoreUnavailable, Taken
from proxy.gateway.admission.checks import commit, key_rules, require
from proxy.gateway.admission.rate_limits import limits_of
from proxy.gateway.http.errors import HttpError
from proxy.gateway.snapshot.config_snapshot import Limits
from tests.for_each import for_each

from .test_shared_rate_limits import caller


@for_each(
    ("ip", "admitted"), [("10.1.2.3", True), ("192.0.2.1", False), ("", False), (None, False)]
)
def test_a_request_without_a_known_address_is_not_admitted(ip, admitted):
    sender = dataclasses.replace(caller(), ip_allow=("10.0.0.0/8",), scopes=frozenset({"messages"}))

    if admitted:
        require(key_rules(sender, ip, "messages"))
        return
    with pytest.raises(HttpError, match="may not be used from this address"):
        require(key_rules(sender, ip, "messages"))


def test_the_first_check_that_refuses_decides_the_error():
    checks = limits_of(caller(Limits(rpm=2, tpm=60), Limits(concurrency=1)), 10, "")
    full = Standing(spent=60_000_000, reserved=1)

    for standings, name in (
        ((Standing(), full, full), "tpm"),
        ((Standing(), Standing(), full), "concurrency"),
    ):
        with pytest.raises(HttpError) as caught:
            commit(checks, lambda _, found=standings: Taken(granted=False, standings=found))
        assert caught.value.detail == name


def test_a_refusal_of_the_store_alone_admits_nothing():
    checks = limits_of(caller(Limits(rpm=2)), 0, "")

    with pytest.raises(StoreUnavailable):
        commit(checks, lambda _: Taken(granted=False, standings=(Standing(),)))
