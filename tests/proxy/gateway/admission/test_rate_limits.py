"""Rate limits of keys and teams: exact at admission, released on every outcome."""

import itertools
import threading
import time

import pytest

from proxy.gateway.admission.rate_limits import Bucket, Limiter
from proxy.gateway.http.errors import HttpError
from proxy.gateway.snapshot.config_snapshot import Caller, Limits, ModelAllowList, TeamEntry
from proxy.models import ApiKey, Team
from tests.fakes.upstreams.script_steps import Stall, json_response
from tests.fakes.upstreams.upstream import ScriptedUpstream
from tests.proxy.gateway import upstream_scripts
from tests.proxy.gateway.conftest import message, row
from tests.proxy.gateway.http_client import GatewayClient

numbers = itertools.count()


@pytest.fixture
def ben(gateway: GatewayClient, reload):
    """Return a function that creates a team with a key and returns the secret."""

    def make(key: dict | None = None, team: dict | None = None) -> str:
        name = f"limited-{next(numbers)}"
        owner = Team.objects.create(name=name, limits=team or {})
        _, secret = ApiKey.issue(owner, "ben", scopes=["messages"], limits=key or {})
        reload()
        return secret

    return make


@pytest.mark.parametrize("place", ["key", "team"])
def test_requests_per_minute_are_counted_exactly(
    gateway: GatewayClient, scripted: ScriptedUpstream, ben, place: str
):
    scripted.on("chat-rpm", upstream_scripts.chat())
    secret = ben(**{place: {"rpm": 3}})

    replies = [gateway.post(message("chat-rpm"), x_api_key=secret) for _ in range(4)]

    assert [reply.status for reply in replies] == [200, 200, 200, 429]
    remaining = [reply.headers["anthropic-ratelimit-requests-remaining"] for reply in replies]
    assert remaining == ["2", "1", "0", "0"]
    last = replies[-1]
    assert last.json["error"]["type"] == "rate_limit_error"
    assert f"{place} " in last.json["error"]["message"]
    assert "rpm 3, used 3" in last.json["error"]["message"]
    assert 1 <= int(last.headers["retry-after"]) <= 20
    assert last.headers["anthropic-ratelimit-requests-limit"] == "3"
    assert last.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
    row(last.id, outcome="refused", status=429, detail="rpm")


def test_tokens_are_estimated_at_admission_and_corrected_later(
    gateway: GatewayClient, scripted: ScriptedUpstream, ben
):
    costly = {"prompt_tokens": 895, "completion_tokens": 5, "total_tokens": 900}
    scripted.on(
        "chat-tpm",
        upstream_scripts.chat(),
        json_response(upstream_scripts.COMPLETION | {"usage": costly}),
    )
    secret = ben({"tpm": 1_000})
    long = message("chat-tpm", system="x" * 3_000)

    first = gateway.post(long, x_api_key=secret)  # estimated 800, used 17
    row(first.id)
    second = gateway.post(long, x_api_key=secret)  # used 900

    assert (first.status, second.status) == (200, 200)
    # 200 at admission, and 17 more with each second on a slow machine; 966 by usage alone.
    assert int(second.headers["anthropic-ratelimit-tokens-remaining"]) < 900
    huge = gateway.post(message("chat-tpm", system="x" * 40_000), x_api_key=secret)
    assert huge.status == 429
    assert "tpm 1000" in huge.json["error"]["message"]


def test_a_slot_is_taken_only_while_a_response_runs(
    gateway: GatewayClient, scripted: ScriptedUpstream, ben
):
    head, *rest = upstream_scripts.chat_events(["first", "second"])
    scripted.on("chat-slow", upstream_scripts.pieces([head, rest[0]], Stall()))
    scripted.on("chat-quick", upstream_scripts.chat())
    secret = ben({"concurrency": 1})

    with gateway.open(message("chat-slow", stream=True), x_api_key=secret) as connection:
        while b"first" not in connection.recv(65_536):
            pass
        busy = gateway.post(message("chat-quick"), x_api_key=secret)

    assert busy.status == 429
    assert "concurrency 1" in busy.json["error"]["message"]
    scripted.wait_until(lambda requests: requests[-1].ending == "client_gone")
    deadline = time.monotonic() + 60
    while gateway.post(message("chat-quick"), x_api_key=secret).status != 200:
        assert time.monotonic() < deadline, "the slot is still taken"


def test_of_many_concurrent_requests_the_limit_is_admitted(
    gateway: GatewayClient, scripted: ScriptedUpstream, ben
):
    scripted.on("chat-crowd", upstream_scripts.chat())
    secret = ben({"rpm": 4})
    seen: list[int] = []

    def send() -> None:
        seen.append(gateway.post(message("chat-crowd"), x_api_key=secret).status)

    threads = [threading.Thread(target=send) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert seen.count(200) == 4
    assert seen.count(429) == 8


def test_a_bucket_refills_evenly_and_never_overflows():
    bucket = Bucket(size=60, left=0, at=100.0)

    bucket.refill(110.0)
    assert bucket.left == 10
    assert bucket.seconds_until(15) == 5
    bucket.refill(1_000.0)
    assert bucket.left == 60


def test_a_refused_request_takes_nothing():
    team = TeamEntry(name="t", store_full=True, models=ModelAllowList(), limits=Limits(rpm=1))
    caller = Caller(
        key_id=1, key_name="k", meter="t/k", team=team, user="", scopes=frozenset(), models=ModelAllowList(),
        limits=Limits(rpm=5), ip_allow=(), strict=False, events=frozenset(),
    )  # fmt: skip
    limiter = Limiter()
    slot = limiter.acquire(caller, 0)
    slot.release()

    for _ in range(3):
        with pytest.raises(HttpError, match="team t"):
            limiter.acquire(caller, 0)

    key_state, team_state = slot.states
    assert key_state.requests is not None
    assert 4 <= key_state.requests.left < 5  # of five; it refills by a twelfth each second
    assert team_state.running == key_state.running == 0
