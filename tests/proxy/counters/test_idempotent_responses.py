"""An idempotency key is claimed once, on one machine and on all that share a Redis."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from proxy.counters.budget_store import StoreUnavailable
from proxy.counters.idempotent_responses import (
    PREFIX,
    FailoverResponses,
    RedisResponses,
    SqliteResponses,
    StoredResponse,
)
from proxy.counters.redis_client import client_of
from tests.fakes.servers.redis_server import REDIS_TIMEOUT_S

NO_SERVER = "redis://127.0.0.1:1"
DONE = StoredResponse(b"digest", done=True, body=b'{"text": "\xc3\xa9"}')


@pytest.fixture
def client(redis_server):
    redis_client = client_of(redis_server.url, REDIS_TIMEOUT_S)
    yield redis_client
    redis_client.close()


@pytest.fixture(params=["file", "redis", "both"])
def store(request, tmp_path):
    file = SqliteResponses(tmp_path / "store.sqlite3")
    if request.param == "file":
        return file
    shared = RedisResponses(request.getfixturevalue("client"))
    return shared if request.param == "redis" else FailoverResponses(shared, file)


def test_the_first_claim_succeeds_and_later_ones_get_its_state(store):
    assert store.claim(1, "name", b"digest") is None
    assert store.claim(1, "name", b"other") == StoredResponse(b"digest")

    store.settle(1, "name", DONE)

    assert store.claim(1, "name", b"digest") == DONE


def test_two_gateway_keys_can_claim_the_same_name(store):
    assert store.claim(1, "name", b"digest") is None
    assert store.claim(2, "name", b"digest") is None


def test_a_failed_request_frees_its_name(store):
    store.claim(1, "name", b"digest")
    store.free(1, "name")

    assert store.claim(1, "name", b"other") is None


def test_a_response_can_be_stored_without_its_body(store):
    store.claim(1, "name", b"digest")
    store.settle(1, "name", StoredResponse(b"digest", done=True))

    assert store.claim(1, "name", b"digest") == StoredResponse(b"digest", done=True)


def test_of_many_concurrent_claims_one_succeeds(store):
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: store.claim(1, "name", b"digest"), range(24)))

    assert results.count(None) == 1
    assert set(results) == {None, StoredResponse(b"digest")}


@pytest.fixture
def machines(client, tmp_path):
    """Two machines that share a Redis."""
    return [
        FailoverResponses(RedisResponses(client), SqliteResponses(tmp_path / f"{number}.sqlite3"))
        for number in range(2)
    ]


def test_a_response_of_one_machine_is_returned_by_the_other(machines):
    one, other = machines
    assert one.claim(1, "name", b"digest") is None
    assert other.claim(1, "name", b"digest") == StoredResponse(b"digest")

    one.settle(1, "name", DONE)

    assert other.claim(1, "name", b"digest") == DONE
    assert other.claim(1, "name", b"digest") == DONE


def test_without_redis_each_machine_uses_its_own_store(machines):
    unreachable = RedisResponses(client_of(NO_SERVER))
    disconnected = [FailoverResponses(unreachable, each.local) for each in machines]
    with pytest.raises(StoreUnavailable):
        unreachable.claim(1, "name", b"digest")

    assert [each.claim(1, "name", b"digest") for each in disconnected] == [None, None]
    disconnected[0].settle(1, "name", DONE)
    disconnected[1].free(1, "name")

    assert [each.claim(1, "name", b"digest") for each in machines] == [DONE, None]


def test_a_malformed_redis_value_counts_as_missing(machines, client):
    one, _ = machines
    one.claim(1, "name", b"digest")
    one.local.free(1, "name")
    (key,) = client.scan_iter(PREFIX + "*")
    client.set(key, "nonsense")

    assert one.claim(1, "name", b"digest") is None
    assert "name" not in key


def test_a_full_file_stores_the_claim_without_the_body(tmp_path):
    store = SqliteResponses(tmp_path / "store.sqlite3", max_bytes=200_000)
    for name in ("first", "second"):
        store.claim(1, name, b"digest")
        store.settle(1, name, StoredResponse(b"digest", done=True, body=b"x" * 300_000))

    assert store.claim(1, "first", b"digest") == StoredResponse(
        b"digest", done=True, body=b"x" * 300_000
    )
    assert store.claim(1, "second", b"digest") == StoredResponse(b"digest", done=True)
