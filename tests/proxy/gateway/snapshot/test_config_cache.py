"""The cached configuration equals the one in the database."""

import stat
from decimal import Decimal

import pytest
from django.contrib.auth import get_user_model

from proxy.gateway.snapshot import config_cache
from proxy.gateway.snapshot.config_snapshot import Snapshot, build_snapshot
from proxy.gateway.snapshot.upstream_policies import NO_POLICIES, Policies, Rule
from proxy.models import (
    ApiKey,
    Budget,
    OnClientDisconnect,
    Price,
    Route,
    RouteTarget,
    Team,
    Upstream,
    UpstreamPolicy,
)
from proxy.secrets import reasoning_signing_keys

pytestmark = pytest.mark.django_db


@pytest.fixture
def company():
    """Create rows of each model, with every kind of relation between them, and no other keys."""
    ApiKey.objects.all().delete()  # of the gateway that other tests of the folder share
    team = Team.objects.create(name="acme", models_allowed=["claude-*"], limits={"rpm": 600})
    ada = get_user_model().objects.create_user("ada", password="correct horse battery")
    get_user_model().objects.create_user("olga")
    key, _ = ApiKey.issue(team, "ci", user=ada, scopes=["messages", "reports"])
    quiet = Team.objects.create(name="quiet", store="metadata")
    ApiKey.issue(quiet, "old", successor=key, options={"strict": True, "events": ["blocks"]})
    ApiKey.issue(team, "bot", options={"store": "metadata"})
    Upstream.objects.create(name="off", dialect="chat", base_url="http://o/v1", enabled=False)
    upstream = Upstream.objects.create(
        name="vllm", dialect="chat", base_url="http://vllm:8000/v1", timeouts={"connect_s": 5},
        when_client_leaves=OnClientDisconnect.DRAIN,
    )  # fmt: skip
    Upstream.objects.create(
        name="away", dialect="chat", base_url="http://b/v1", secret={"env": "NO_SUCH_VARIABLE"}
    )
    for model, owner in (("claude-*", None), ("claude-x", team)):
        route = Route.objects.create(model=model, team=owner)
        RouteTarget.objects.create(route=route, upstream=upstream, model="qwen3", weight=2)
    Price.objects.create(upstream=upstream, model="qwen3", since="2026-01-01", input=1, output=2)
    Price.objects.create(model="*", since="2026-01-01", input=Decimal("0.5"), output=2)
    Budget.objects.create(team=team, usd=500)
    Budget.objects.create(key=key, usd=5, hard=False)
    Budget.objects.create(user=ada, usd=50)
    UpstreamPolicy.objects.create(upstream=upstream, kind="beta", name="x-*", action="drop")
    return upstream


def comparable(snapshot: Snapshot) -> dict:
    """Return the parts of a snapshot that can be compared, without dialects and patterns."""
    prices = snapshot.prices.dated
    return {
        "revision": snapshot.revision,
        "keys": dict(snapshot.keys),
        "exact": dict(snapshot.exact),
        "globs": snapshot.globs,
        "prices": prices,
        "admitted": snapshot.content_rules,
        "broken": dict(snapshot.broken),
    }


def test_cached_configuration_builds_the_same_snapshot(
    company, tmp_path, django_assert_num_queries
):
    configuration = config_cache.read_database()
    config_cache.save_cached(configuration, tmp_path / "cached.json")
    with django_assert_num_queries(0):
        cached = config_cache.load_cached(tmp_path / "cached.json")
        again = comparable(build_snapshot(cached))

    now = comparable(build_snapshot(configuration))
    assert again == now
    assert len(now["keys"]) == 3
    assert {len(caller.budgets) for caller in now["keys"].values()} == {1, 3}
    assert "NO_SUCH_VARIABLE" in now["broken"].pop("away")
    assert now["broken"] == {}  # a disabled upstream is not in it
    target = now["exact"][("acme", "claude-x")].targets[0]
    assert (target.server.name, target.server.drains_on_disconnect) == ("vllm", True)
    assert (target.model, target.reasoning_signing_keys) == ("qwen3", reasoning_signing_keys())
    callers = {each.key_name: each for each in now["keys"].values()}
    assert {name: (each.strict, each.events, each.team.store_full, each.meter)
            for name, each in callers.items()} == {
        "ci": (False, frozenset(), True, "acme/ci"),
        "old": (True, frozenset({"blocks"}), False, "quiet/ci"),
        "bot": (False, frozenset(), False, "acme/bot"),
    }  # fmt: skip


def test_the_cache_file_is_private_and_contains_no_password_hash(company, tmp_path):
    path = tmp_path / "cached.json"

    config_cache.save_cached(config_cache.read_database(), path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["cached.json"]
    text = path.read_text()
    assert '"ada"' in text
    assert "olga" not in text  # she has no key
    assert "pbkdf2" not in text


@pytest.mark.parametrize("text", ["", "{}", '{"revision": 1, "rows": {"proxy.Team": [{}]}}'])
def test_an_invalid_cache_file_is_ignored(tmp_path, text, caplog):
    (tmp_path / "cached.json").write_text(text)

    assert config_cache.load_cached(tmp_path / "cached.json") is None
    assert "cached.json cannot be used" in caplog.text


def test_a_missing_cache_file_logs_nothing(tmp_path, caplog):
    assert config_cache.load_cached(tmp_path / "cached.json") is None
    assert caplog.text == ""


def test_a_block_rule_of_one_upstream_makes_all_upstreams_filter_messages(company):
    def policies() -> tuple[Policies, Policies]:
        snapshot = build_snapshot(config_cache.read_database())
        (target,) = snapshot.exact[("acme", "claude-x")].targets
        return snapshot.content_rules, target.server.policies

    of_betas = Rule("beta", "x-*", "drop")
    assert policies() == (NO_POLICIES, Policies((of_betas,)))

    other = Upstream.objects.create(name="other", dialect="anthropic", base_url="http://a")
    UpstreamPolicy.objects.create(upstream=other, kind="block", name="new", action="drop")
    of_blocks = Rule("block", "new", "drop")
    assert policies() == (Policies((of_blocks,)), Policies((of_betas,), filters_messages=True))

    UpstreamPolicy.objects.create(kind="role", name="tool", action="refuse")  # for all upstreams
    content_rules, own = policies()
    assert set(content_rules.rules) == {of_blocks, Rule("role", "tool", "refuse")}
    assert set(own.rules) == {of_betas, Rule("role", "tool", "refuse")}
