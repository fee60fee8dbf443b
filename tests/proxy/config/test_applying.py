"""A bridge.toml becomes rows: as planned, whole or not at all, once."""

from datetime import timedelta

import pytest
from django.utils.timezone import now

from proxy.config.applying import apply
from proxy.config.exporting import export
from proxy.config.reading import read
from proxy.models import ApiKey, Budget, Price, Revision, Route, RouteTarget, Team, Upstream
from proxy.secrets import ConfigError, digest_of

from .conftest import SECRET

pytestmark = pytest.mark.django_db


def lines(text, **options):
    return [str(change) for change in apply(read(text), **options)]


def counts():
    return [
        kind.objects.count() for kind in (Team, ApiKey, Upstream, Route, RouteTarget, Price, Budget)
    ]


def test_a_first_time_makes_everything_in_the_file(toml):
    told = lines(toml)

    assert told == [
        "+ team ada",
        "+ key ada/ci",
        "+ key ada/ben",
        "+ budget ada a month",
        "+ upstream openai",
        "+ upstream vllm",
        "+ route claude-*",
        "+ targets of route claude-*: openai gpt-5.2, vllm qwen3",
        "+ price openai gpt-5.2 since 2026-01-01",
    ]
    key = ApiKey.objects.get(name="ci")
    assert bytes(key.digest) == digest_of(SECRET)
    assert key.managed
    assert SECRET not in key.prefix
    assert Upstream.objects.get(name="openai").secret == {"env": "OPENAI_API_KEY"}


def test_a_second_time_changes_nothing_and_wakes_nobody(toml):
    lines(toml)
    before = Revision.objects.get().number

    assert lines(toml) == []
    assert Revision.objects.get().number == before


def test_a_dry_run_tells_the_same_plan_and_changes_nothing(toml):
    planned = lines(toml, dry_run=True)

    assert counts() == [0] * 7
    assert lines(toml) == planned


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("retention_days = 30", "retention_days = 7", "~ team ada: retention_days 30 -> 7"),
        ('usd = "500"', 'usd = "600"', "~ budget ada a month: usd 500.000000 -> 600"),
        ("idle_s = 120", "idle_s = 60", "~ upstream openai: timeouts"),
        (
            'leaves = "drain"',
            'leaves = "abort"',
            "~ upstream vllm: when_client_leaves drain -> abort",
        ),
        (
            'reuse = "key"',
            'reuse = "never"',
            "~ upstream vllm: connection_reuse key -> never",
        ),
        ("weight = 1", "weight = 3", "~ targets of route claude-*"),
        ("expires = 2027-01-01", "expires = 2028-01-01", "~ key ada/ci: expires"),
    ],
)
def test_a_change_is_one_line(toml, old, new, told):
    lines(toml)

    (line,) = lines(toml.replace(old, new))

    assert line.startswith(told)


def test_a_new_secret_is_told_without_being_shown(toml, monkeypatch):
    lines(toml)
    monkeypatch.setenv("BRIDGE_KEY_CI", "sk-br-" + "Eve1" * 12)

    assert lines(toml) == ["~ key ada/ci: secret"]


def test_what_the_file_drops_is_revoked_or_deleted_but_history_stays(toml):
    lines(toml)

    told = lines("")

    assert "- key ada/ci: revoked" in told
    assert "- upstream openai" in told
    assert "- route claude-*" in told
    assert not ApiKey.objects.filter(revoked=None).exists()
    assert not Upstream.objects.exists()
    assert not Budget.objects.exists()
    assert Team.objects.filter(name="ada", managed=False).exists()
    assert lines("") == []


def test_a_key_that_comes_back_is_valid_again(toml):
    lines(toml)
    lines("")

    assert any(line.startswith("~ key ada/ci") for line in lines(toml))
    assert ApiKey.objects.get(name="ci").revoked is None


def revoked(name, **fields):
    key = ApiKey.objects.get(name=name)
    assert key.revoke()
    return key


def test_a_revocation_wins_over_the_file_and_the_plan_says_so(toml):
    lines(toml)
    for name in ("ci", "ben"):
        revoked(name)

    planned = lines(toml, dry_run=True)

    assert (
        planned
        == lines(toml)
        == [
            f"= key ada/{name}: revoked {now():%Y-%m-%d}: stays revoked; "
            "a new secret in the file opens it again"
            for name in ("ci", "ben")
        ]
    )
    assert not ApiKey.objects.filter(revoked=None).exists()


def test_a_revocation_outlives_that_the_file_drops_and_names_the_key(toml):
    lines(toml)
    key = revoked("ci")
    lines("")
    ben = revoked("ben")  # which only the file had revoked

    told = lines(toml)

    assert [line for line in told if "stays revoked" in line]
    for one in (key, ben):
        before = one.revoked
        one.refresh_from_db()
        assert one.revoked == before
        assert one.managed


def test_a_key_that_the_admin_revoked_is_not_opened_by_a_file_that_names_it(toml):
    lines(toml.replace('name = "ci"', 'name = "other"'))
    ApiKey.objects.filter(name="other").update(managed=False, name="ci")
    revoked("ci")

    assert "= key ada/ci: revoked" in "\n".join(lines(toml))
    assert ApiKey.objects.get(name="ci").revoked is not None


def test_a_new_secret_opens_a_revoked_key_and_the_revoked_one_never_again(toml, monkeypatch):
    lines(toml)
    revoked("ci")
    monkeypatch.setenv("BRIDGE_KEY_CI", "sk-br-" + "Eve1" * 12)

    (told,) = [line for line in lines(toml) if "ada/ci" in line]

    assert told.startswith("~ key ada/ci: secret, revoked 20")
    key, old = ApiKey.objects.get(name="ci"), ApiKey.objects.get(digest=digest_of(SECRET))
    assert (key.revoked, old.successor) == (None, key)
    assert old.revoked is not None
    monkeypatch.setenv("BRIDGE_KEY_CI", SECRET)
    (told,) = [line for line in lines(toml) if "ada/ci" in line]
    assert told.startswith("= key ada/ci: the file still has the secret that was revoked on 20")
    key.refresh_from_db()
    assert bytes(key.digest) != digest_of(SECRET)


def test_a_rotated_secret_wins_over_that_of_the_file(toml):
    lines(toml)
    key = ApiKey.objects.get(name="ci")
    old, _ = key.rotate(timedelta())

    told = lines(toml)

    day = f"{old.created:%Y-%m-%d}"
    assert told == [
        f"= key ada/ci: the file still has the secret that was rotated on {day}: put the new one in"
    ]
    again = ApiKey.objects.get(name="ci")
    assert (bytes(again.digest), again.managed) == (key.digest, True)


def test_a_key_without_a_secret_has_no_digest(toml):
    lines(toml)

    key = ApiKey.objects.get(name="ben")

    assert (key.digest, key.prefix, key.has_secret) == (None, "", False)


# what is written -> what the complaint must hold; each is found only while applying
FOUND_LATE = {
    "nearest upstream": (
        'upstream = "vllm"',
        'upstream = "vlm"',
        "routes[0].targets[1].upstream: no upstream 'vlm'; did you mean 'vllm'?",
    ),
    "nearest team": (
        'team = "ada"\nname = "ci"',
        'team = "adda"\nname = "ci"',
        "keys[0].team: no team 'adda'",
    ),
    "no scheme": (
        "https://api.openai.com/v1",
        "api.openai.com/v1",
        "upstreams[0].base_url: base URL",
    ),
    "password in URL": ("https://api", "https://u:p@api", "no user or password"),
    "clear text": (
        "https://api.openai.com/v1",
        "http://api.openai.com/v1",
        "in clear to a public host",
    ),
    "capability": (
        "required_tool_choice",
        "required_tool_choise",
        "upstreams[0].capabilities: unknown capability",
    ),
    "profile": ('profile = "openai"', 'profile = "opnai"', "upstreams[0].profile: unknown profile"),
    "reserved name": ('name = "vllm"', 'name = "sandbox"', "belongs to the built-in sandbox"),
    "secret missing": (
        'env = "BRIDGE_KEY_CI"',
        'env = "BRIDGE_KEY_NONE"',
        "keys[0].secret: environment variable BRIDGE_KEY_NONE",
    ),
}


@pytest.mark.parametrize("name", FOUND_LATE)
def test_a_mistake_found_late_leaves_nothing_behind(toml, name):
    old, new, complaint = FOUND_LATE[name]
    assert old in toml

    with pytest.raises(ConfigError) as caught:
        lines(toml.replace(old, new))

    assert complaint in str(caught.value)
    assert counts() == [0] * 7


def test_two_keys_cannot_share_a_secret(toml):
    twin = '\n[[keys]]\nteam = "ada"\nname = "mallory"\nsecret = { env = "BRIDGE_KEY_CI" }\n'

    with pytest.raises(ConfigError, match="key ada/ci has the same secret"):
        lines(toml + twin)


def test_a_price_in_force_is_never_overwritten(toml):
    lines(toml)

    with pytest.raises(ConfigError, match="never overwritten"):
        lines(toml.replace('input = "1.25"', 'input = "2.50"'))


def test_an_upstream_that_the_admin_still_uses_is_not_taken_away(toml):
    lines(toml)
    route = Route.objects.create(model="mine")
    RouteTarget.objects.create(route=route, upstream=Upstream.objects.get(name="vllm"))

    with pytest.raises(ConfigError, match="route 'mine' of the admin still leads to it"):
        lines("")


def test_an_export_applied_again_changes_nothing(toml):
    lines(toml)

    exported = export()

    assert lines(exported) == []
    assert SECRET not in exported


def test_an_export_makes_the_same_installation_elsewhere(toml):
    lines(toml)
    exported = export()
    for kind in (Budget, ApiKey, RouteTarget, Route, Price, Upstream, Team):
        kind.objects.all().delete()

    lines(exported)

    assert export() == exported
