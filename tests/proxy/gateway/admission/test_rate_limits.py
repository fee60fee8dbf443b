"""Rate limits of keys and teams, for all models or some.

They are exact at admission, and every outcome releases them.
"""

import dataclasses
import itertools
import threading
import time

import pytest

from proxy.counters.memory_store import MemoryStore
from proxy.gateway.admission.rate_limits import Bucket, Limiter, limits_of
from proxy.gateway.http.errors import HttpError
from proxy.gateway.snapshot.config_snapshot import (
    NO_LIMITS,
    Caller,
    Limits,
    ModelAllowList,
    ModelLimits,
    TeamEntry,
)
from proxy.models import ApiKey, Team
from tests.fakes.upstreams.script_steps import Stall, WaitForGate, json_response
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
    long = message("chat-tpm", system="x" * 2_000)

    first = gateway.post(long, x_api_key=secret)  # estimated 720, used 17
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
    limiter = Limiter(MemoryStore(lambda: 0.0))
    sender = dataclasses.replace(caller(), limits=Limits(rpm=5, concurrency=2))
    sender = dataclasses.replace(
        sender, team=dataclasses.replace(sender.team, limits=Limits(rpm=1))
    )
    limiter.acquire(sender, 0).release()

    for _ in range(3):
        with pytest.raises(HttpError, match="team t"):
            limiter.acquire(sender, 0)

    assert used(limiter, sender) == [0, 1, 1]


def used(limiter: Limiter, sender: Caller, model: str = "") -> list[float]:
    checks = limits_of(sender, 0, model)
    found = zip(checks, limiter.peek(checks), strict=True)
    return [round(check.used(standing), 6) for check, standing in found]


OPUS = ModelLimits("claude-opus-*", Limits(rpm=2, concurrency=1))


def caller(*own: ModelLimits, team: tuple[ModelLimits, ...] = ()) -> Caller:
    entry = TeamEntry(
        name="t", store_full=True, models=ModelAllowList(), limits=NO_LIMITS, model_limits=team
    )
    return Caller(
        key_id=1, key_name="k", meter="t/k", team=entry, user="", scopes=frozenset(),
        models=ModelAllowList(), limits=NO_LIMITS, ip_allow=(), strict=False, events=frozenset(),
        model_limits=own,
    )  # fmt: skip


def test_models_of_one_glob_share_its_limits_and_others_have_none():
    limiter, sender = Limiter(), caller(OPUS)
    for model in ("claude-opus-4", "claude-opus-5"):
        limiter.acquire(sender, 0, model).release()

    with pytest.raises(HttpError, match=r"key t/k for claude-opus-\* is at its limit: rpm 2"):
        limiter.acquire(sender, 0, "claude-opus-6")
    for _ in range(5):
        limiter.acquire(sender, 0, "claude-haiku-5").release()


def test_a_request_takes_from_every_matching_limit_or_from_none():
    limiter = Limiter(MemoryStore(lambda: 0.0))
    sender = caller(OPUS, team=(ModelLimits("*", Limits(rpm=1)),))
    limiter.acquire(sender, 0, "claude-opus-4").release()

    with pytest.raises(HttpError, match=r"team t for \* is at its limit: rpm 1"):
        limiter.acquire(sender, 0, "claude-opus-4")

    assert [(each.subject, each.name) for each in limits_of(sender, 0, "claude-opus-4")] == [
        ("key t/k for claude-opus-*", "concurrency"),
        ("key t/k for claude-opus-*", "rpm"),
        ("team t for *", "rpm"),
    ]
    assert used(limiter, sender, "claude-opus-4") == [0, 1, 1]


def test_other_keys_have_limits_of_their_own():
    limiter = Limiter()
    limiter.acquire(caller(OPUS), 0, "claude-opus-4")

    other = dataclasses.replace(caller(OPUS), meter_id=2)
    limiter.acquire(other, 0, "claude-opus-4")

    with pytest.raises(HttpError, match="concurrency 1"):
        limiter.acquire(other, 0, "claude-opus-4")


def test_a_renamed_key_or_team_keeps_its_counts_and_a_name_that_is_given_anew_has_none():
    limiter, sender = Limiter(), dataclasses.replace(caller(OPUS), meter_id=1)
    limiter.acquire(sender, 0, "claude-opus-4")
    of_team = dataclasses.replace(sender.team, name="renamed")
    renamed = dataclasses.replace(sender, meter="renamed/k", team=of_team)

    with pytest.raises(HttpError, match=r"key renamed/k for claude-opus-\* is at its limit"):
        limiter.acquire(renamed, 0, "claude-opus-4")
    limiter.acquire(dataclasses.replace(sender, meter_id=2), 0, "claude-opus-4")


def test_the_gateway_limits_concurrent_requests_for_the_models_of_a_team(budget_gateway):
    dear, cheap = budget_gateway.model("chat"), budget_gateway.model("chat")
    gate = threading.Event()
    for name in (dear, cheap):
        budget_gateway.scripted.on(name, [WaitForGate(gate), *upstream_scripts.chat()])
    team = budget_gateway.cleo.team
    team.limits = {"models": {f"{dear[:-1]}[{dear[-1]}]": {"concurrency": 3}}}
    team.save()
    budget_gateway.reload()
    before, seen = len(budget_gateway.scripted.requests), []

    def send(name: str) -> None:
        seen.append((name, budget_gateway.send(name).status))

    names = [dear, cheap] * 8
    threads = [threading.Thread(target=send, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    # No admitted request ends, and frees its slot, before all have arrived.
    budget_gateway.scripted.wait_until(lambda got: len(got) - before + len(seen) == len(names))
    gate.set()
    for thread in threads:
        thread.join()

    assert (seen.count((dear, 200)), seen.count((dear, 429))) == (3, 5)
    assert seen.count((cheap, 200)) == 8
    assert budget_gateway.send(dear).status == 200, "a slot was not freed"
