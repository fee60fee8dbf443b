"""Rate limits of a team or key for some models apply beside those for all models."""

import dataclasses
import threading

import pytest

from proxy.gateway.admission.rate_limits import Limiter, limits_by_state
from proxy.gateway.http.errors import HttpError
from proxy.gateway.snapshot.config_snapshot import (
    NO_LIMITS,
    Caller,
    Limits,
    ModelAllowList,
    ModelLimits,
    TeamEntry,
)
from tests.fakes.upstreams.script_steps import WaitForGate
from tests.proxy.gateway import upstream_scripts

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
    limiter = Limiter()
    sender = caller(OPUS, team=(ModelLimits("*", Limits(rpm=1)),))
    first = limiter.acquire(sender, 0, "claude-opus-4")
    first.release()

    with pytest.raises(HttpError, match=r"team t for \* is at its limit: rpm 1"):
        limiter.acquire(sender, 0, "claude-opus-4")

    names = [state.name for state in first.states]
    assert names == ["key t/k", "key t/k for claude-opus-*", "team t", "team t for *"]
    assert [name for name, _ in limits_by_state(sender, "claude-opus-4")] == names
    opus = limiter.peek(sender, "claude-opus-4")[1]
    assert (opus.running, opus.requests.left) == (0, pytest.approx(1, abs=0.1))


def test_other_keys_have_limits_of_their_own():
    limiter = Limiter()
    limiter.acquire(caller(OPUS), 0, "claude-opus-4")

    other = dataclasses.replace(caller(OPUS), meter="t/other")
    limiter.acquire(other, 0, "claude-opus-4")

    with pytest.raises(HttpError, match="concurrency 1"):
        limiter.acquire(other, 0, "claude-opus-4")


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
