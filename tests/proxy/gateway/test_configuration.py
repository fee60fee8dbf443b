"""What is kept for a start without the database says the same as the database did."""

import stat
from decimal import Decimal

import pytest
from django.contrib.auth import get_user_model
from django.db import DatabaseError, connection

from proxy.gateway import configuration
from proxy.gateway.directory import Directory, Snapshot, snapshot_of
from proxy.gateway.policies import NONE, Policies, Rule
from proxy.models import (
    ApiKey,
    Budget,
    Leaving,
    Price,
    Route,
    RouteTarget,
    Team,
    Upstream,
    UpstreamPolicy,
)
from proxy.secrets import carrier_keys

pytestmark = pytest.mark.django_db


@pytest.fixture
def company():
    """One row of each kind at least, and every way in which they point to each other."""
    team = Team.objects.create(name="platform", models_allowed=["claude-*"], limits={"rpm": 600})
    ada = get_user_model().objects.create_user("ada", password="correct horse battery")
    get_user_model().objects.create_user("olga")
    key, _ = ApiKey.issue(team, "ci", user=ada, scopes=["messages", "reports"])
    quiet = Team.objects.create(name="quiet", store="metadata")
    ApiKey.issue(quiet, "old", successor=key, options={"strict": True, "events": ["blocks"]})
    ApiKey.issue(team, "bot", options={"store": "metadata"})
    Upstream.objects.create(name="off", dialect="chat", base_url="http://o/v1", enabled=False)
    upstream = Upstream.objects.create(
        name="vllm", dialect="chat", base_url="http://vllm:8000/v1", timeouts={"connect_s": 5},
        when_client_leaves=Leaving.DRAIN,
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


def told(snapshot: Snapshot) -> dict:
    """Everything that can be compared; the rest are addresses of dialects and compiled patterns."""
    prices = snapshot.prices._dated
    return {
        "revision": snapshot.revision,
        "keys": dict(snapshot.keys),
        "exact": dict(snapshot.exact),
        "globs": snapshot.globs,
        "prices": prices,
        "admitted": snapshot.admitted,
        "broken": dict(snapshot.broken),
    }


def test_what_was_kept_makes_the_same_snapshot(company, tmp_path, django_assert_num_queries):
    read = configuration.read()
    configuration.keep(read, tmp_path / "kept.json")
    with django_assert_num_queries(0):
        recalled = configuration.recall(tmp_path / "kept.json")
        again = told(snapshot_of(recalled))

    now = told(snapshot_of(read))
    assert again == now
    assert len(now["keys"]) == 3
    assert {len(caller.budgets) for caller in now["keys"].values()} == {1, 3}
    assert "NO_SUCH_VARIABLE" in now["broken"].pop("away")
    assert now["broken"] == {}  # one that is off is not missed
    target = now["exact"][("platform", "claude-x")].targets[0]
    assert (target.server.name, target.server.hears_out) == ("vllm", True)
    assert (target.model, target.carrier_keys) == ("qwen3", carrier_keys())
    callers = {each.key_name: each for each in now["keys"].values()}
    assert {name: (each.strict, each.events, each.team.store_full, each.meter)
            for name, each in callers.items()} == {
        "ci": (False, frozenset(), True, "platform/ci"),
        "old": (True, frozenset({"blocks"}), False, "quiet/ci"),
        "bot": (False, frozenset(), False, "platform/bot"),
    }  # fmt: skip


def test_a_rotated_secret_is_in_use_even_while_the_database_is_away(company, tmp_path, monkeypatch):
    """The rows are those that were kept; what is behind their references is new."""
    secret = tmp_path / "secret"
    secret.write_text("one")
    company.secret = {"file": str(secret)}
    company.save()
    monkeypatch.setattr(configuration.conf.__class__, "last_configuration", tmp_path / "kept.json")
    looking = Directory()
    looking.look()
    assert secret_in(looking) == b"one"
    unchanged = looking.snapshot
    looking.look()
    assert looking.snapshot is unchanged

    with monkeypatch.context() as away:
        away.setattr("proxy.gateway.directory.present", unreachable)
        away.setattr(connection, "close", lambda: None)  # the test's transaction goes on
        secret.write_text("two")
        looking.look()
        assert secret_in(looking) == b"two"
        (tmp_path / "kept.json").unlink()
        secret.write_text("three")
        looking.look()  # there are no rows to make a snapshot of
        assert secret_in(looking) == b"two"
    looking.look()
    assert secret_in(looking) == b"three"
    secret.unlink()
    looking.look()
    assert secret_in(looking) == b"three"
    assert looking.snapshot.secret_files == {"vllm": str(secret)}
    assert looking.snapshot.broken.keys() == {"away"}


def secret_in(looking: Directory) -> bytes:
    return looking.snapshot.exact[("platform", "claude-x")].targets[0].server.secret


def unreachable() -> None:
    raise DatabaseError("the database is away")


def test_the_file_is_ours_alone_and_holds_nothing_to_sign_in_with(company, tmp_path):
    path = tmp_path / "kept.json"

    configuration.keep(configuration.read(), path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["kept.json"]
    kept = path.read_text()
    assert '"ada"' in kept
    assert "olga" not in kept  # nothing of hers decides anything
    assert "pbkdf2" not in kept


@pytest.mark.parametrize("text", ["", "{}", '{"revision": 1, "rows": {"proxy.Team": [{}]}}'])
def test_a_file_that_cannot_be_used_is_as_good_as_none(tmp_path, text, caplog):
    (tmp_path / "kept.json").write_text(text)

    assert configuration.recall(tmp_path / "kept.json") is None
    assert "kept.json cannot be used" in caplog.text


def test_no_file_is_nothing_to_speak_of(tmp_path, caplog):
    assert configuration.recall(tmp_path / "kept.json") is None
    assert caplog.text == ""


def test_a_rule_for_blocks_of_one_upstream_makes_every_upstream_wary(company):
    def policies() -> tuple[Policies, Policies]:
        made = snapshot_of(configuration.read())
        (target,) = made.exact[("platform", "claude-x")].targets
        return made.admitted, target.server.policies

    of_betas = Rule("beta", "x-*", "drop")
    assert policies() == (NONE, Policies((of_betas,)))

    other = Upstream.objects.create(name="other", dialect="anthropic", base_url="http://a")
    UpstreamPolicy.objects.create(upstream=other, kind="block", name="new", action="drop")
    of_blocks = Rule("block", "new", "drop")
    assert policies() == (Policies((of_blocks,)), Policies((of_betas,), wary=True))

    UpstreamPolicy.objects.create(kind="role", name="tool", action="refuse")  # everybody's
    admitted, own = policies()
    assert set(admitted.rules) == {of_blocks, Rule("role", "tool", "refuse")}
    assert set(own.rules) == {of_betas, Rule("role", "tool", "refuse")}
