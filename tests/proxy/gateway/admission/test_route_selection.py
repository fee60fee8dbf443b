"""Route selection: the targets of a model name and their order."""

import re
from collections import Counter

from proxy.gateway.admission.cooldown import FIRST_S, LONGEST_S, Cooldown
from proxy.gateway.admission.route_selection import by_health_and_weight
from proxy.gateway.snapshot.config_snapshot import ConfigStore, ModelAllowList, RouteEntry, Snapshot
from proxy.gateway.snapshot.targets import Target, UpstreamServer
from proxy.models import Revision
from proxy.models.setup.columns import Timeouts
from tests.fakes.clock import Clock
from tests.for_each import for_each
from translator.capabilities import Profile
from translator.dialect import UpstreamError
from translator.openai_chat import DIALECT


def target(name: str) -> Target:
    server = UpstreamServer.of(
        name=name, dialect=DIALECT, dialect_name="chat", base_url="http://h/v1", secret="s",
        profile=Profile(), timeouts=Timeouts(), extra_body={}, capabilities={},
    )  # fmt: skip
    return Target(server=server, model="")


def entry(model: str, team: str | None = None, **weights: int) -> RouteEntry:
    import fnmatch

    pattern = re.compile(fnmatch.translate(model)) if "*" in model else None
    return RouteEntry(
        model=model,
        team=team,
        pattern=pattern,
        targets=tuple(target(name) for name in weights),
        weights=tuple(weights.values()),
    )


def snapshot(*routes: RouteEntry) -> Snapshot:
    return Snapshot(
        exact={(r.team, r.model): r for r in routes if r.pattern is None},
        globs=tuple(r for r in routes if r.pattern is not None),
    )


@for_each(
    ("team", "model", "found"),
    [
        ("red", "claude-opus", "claude-opus"),
        ("red", "claude-haiku", "claude-*"),
        ("red", "other", "*"),
        ("blue", "claude-opus", "claude-opus/blue"),
        ("blue", "claude-haiku", "claude-h*/blue"),
        ("blue", "claude-sonnet", "claude-*"),
    ],
)
def test_an_exact_name_precedes_globs_and_a_team_route_precedes_others(team, model, found):
    routes = snapshot(
        entry("claude-*"),
        entry("claude-h*"),
        entry("*"),
        entry("claude-opus"),
        entry("claude-opus", "blue"),
        entry("claude-h*", "blue"),
    )

    for _ in range(2):  # the second lookup is cached
        route = routes.route(team, model)

        assert route is not None
        assert "/".join(filter(None, (route.model, route.team))) == found


def test_the_lookup_cache_is_bounded():
    routes = snapshot(entry("a"))

    for n in range(10_000):
        assert routes.route("t", f"unknown-{n}") is None

    assert len(routes.route_cache) <= 4_096


def names(route: RouteEntry, session: str = "", cooling: Cooldown | None = None) -> list[str]:
    chosen = by_health_and_weight(route, "m", session, cooling or Cooldown())
    return [each.server.name for each in chosen]


def failure(status: int = 503, retry_after_s: int | None = None) -> UpstreamError:
    return UpstreamError(
        status=status, error_type="api_error", message="no", retry_after_s=retry_after_s
    )


def test_targets_are_in_their_order_without_weights():
    assert names(entry("m", a=1, b=1, c=1)) == ["a", "b", "c"]
    assert names(entry("m", a=0, b=0)) == ["a", "b"]


def test_weights_distribute_the_first_target_and_zero_is_a_fallback():
    drawn = Counter(tuple(names(entry("m", a=3, b=1, c=0))) for _ in range(400))

    assert set(drawn) == {("a", "b", "c"), ("b", "a", "c")}
    assert drawn["a", "b", "c"] > drawn["b", "a", "c"]


def test_a_session_always_has_the_same_target_and_sessions_are_distributed_by_weight():
    route = entry("m", a=3, b=1, c=0)
    first = {n: names(route, f"session-{n}")[0] for n in range(400)}

    assert all(names(route, f"session-{n}")[0] == first[n] for n in range(400))
    spread = Counter(first.values())
    assert set(spread) == {"a", "b"}
    assert 2 < spread["a"] / spread["b"] < 5


def test_a_cooldown_moves_only_the_sessions_of_its_target_until_it_ends():
    clock = Clock(100.0)
    cooling = Cooldown(clock)
    route = entry("m", a=2, b=2, c=2)
    before = {n: names(route, f"s{n}", cooling)[0] for n in range(100)}
    for _ in range(3):
        cooling.record_failure(("a", "m"), failure())

    during = {n: names(route, f"s{n}", cooling)[0] for n in range(100)}

    assert all(during[n] == before[n] for n in range(100) if before[n] != "a")
    assert {during[n] for n in range(100) if before[n] == "a"} == {"b", "c"}
    clock.at += FIRST_S
    assert {n: names(route, f"s{n}", cooling)[0] for n in range(100)} == before


def test_a_target_that_failed_three_times_in_a_row_is_tried_last_for_a_while():
    clock = Clock(100.0)
    cooling = Cooldown(clock)
    route = entry("m", a=1, b=1)
    for status in (500, 502):
        cooling.record_failure(("a", "m"), failure(status))
    assert names(route, cooling=cooling) == ["a", "b"]
    cooling.record_failure(("a", "m"), failure(504))
    assert names(route, cooling=cooling) == ["b", "a"]
    cooling.record_failure(("b", "m"), failure(429))
    assert names(route, cooling=cooling) == ["a", "b"]

    clock.at += FIRST_S
    cooling.record_failure(("a", "m"), failure())
    clock.at += FIRST_S
    assert names(route, cooling=cooling) == ["b", "a"]
    cooling.record_success(("a", "m"))
    assert names(route, cooling=cooling) == ["a", "b"]


def test_a_rate_limited_target_is_in_cooldown_for_its_retry_after():
    clock = Clock(100.0)
    cooling = Cooldown(clock)
    cooling.record_failure(("a", "m"), failure(429, retry_after_s=30))
    clock.at += 29
    assert cooling.is_cooling(("a", "m"))
    clock.at += 1
    assert not cooling.is_cooling(("a", "m"))
    cooling.record_failure(("a", "m"), failure(429, retry_after_s=86_400))
    clock.at += LONGEST_S
    assert not cooling.is_cooling(("a", "m"))


def test_the_cooldown_state_is_bounded():
    cooling = Cooldown()
    for n in range(10_000):
        cooling.record_failure(("a", f"model-{n}"), failure())

    assert len(cooling.streaks) <= 4_096


def test_an_empty_allow_list_allows_every_model():
    assert ModelAllowList().allow("anything")
    assert ModelAllowList(("claude-*", "gpt-5")).allow("gpt-5")
    assert not ModelAllowList(("claude-*",)).allow("gpt-5")


@for_each(
    ("base", "url"),
    [
        ("http://h/v1", "http://h/v1/chat/completions"),
        ("http://h/v1/", "http://h/v1/chat/completions"),
        ("https://h/x?api-version=3", "https://h/x/chat/completions?api-version=3"),
    ],
)
def test_the_endpoint_is_appended_to_the_base(base, url):
    server = UpstreamServer.of(
        name="s", dialect=DIALECT, dialect_name="chat", base_url=base, secret="",
        profile=Profile(), timeouts=Timeouts(), extra_body={}, capabilities={},
    )  # fmt: skip

    assert str(server.url) == url
    assert "authorization" not in server.headers


def test_the_directory_starts_once_calls_its_listeners_and_is_empty_after_stop(world):
    loads, notified = [], []

    def load() -> Snapshot:
        loads.append(Snapshot(revision=Revision.current()))
        return loads[-1]

    directory = ConfigStore(load)
    directory.listeners.append(notified.append)
    for _ in range(2):
        directory.start()
    thread = directory.thread
    directory.poll()  # unchanged: nothing is loaded

    assert (directory.running, directory.fresh, directory.fault) == (True, True, "")
    assert directory.snapshot is notified[0] is loads[0]
    assert len(loads) == len(notified) == 1
    assert (thread.name, thread.daemon) == ("directory", True)
    for _ in range(2):
        directory.stop()
    assert not thread.is_alive()
    assert (directory.running, directory.fresh, directory.snapshot.revision) == (False, False, -1)
    directory.start()
    directory.stop()
    assert len(loads) == 2


def test_the_last_good_snapshot_stays_while_the_database_is_unavailable(missing_ledger):
    directory = ConfigStore()
    directory.snapshot = snapshot(entry("a"))
    directory.fresh = True

    with missing_ledger():
        directory.poll()

    assert not directory.fresh
    assert directory.fault == "LedgerUnavailable"
    assert directory.snapshot.route("t", "a") is not None
