"""Applying a bridge.toml: plan, rows, dry run, revoked keys and errors."""

import tomllib
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils.timezone import now

from proxy.bootstrap import first_start
from proxy.config.apply import apply
from proxy.config.dump import export
from proxy.config.load import read, starter_prices
from proxy.models import (
    ApiKey,
    AuditEntry,
    Budget,
    Price,
    Revision,
    Route,
    RouteTarget,
    Team,
    Upstream,
    WebhookEvent,
)
from proxy.secrets import ConfigError, digest_of

from .conftest import SECRET

pytestmark = pytest.mark.django_db


def lines(text, **options):
    return [str(change) for change in apply(read(text), **options)]


def counts():
    return [
        kind.objects.count() for kind in (Team, ApiKey, Upstream, Route, RouteTarget, Price, Budget)
    ]


def test_a_first_apply_creates_everything_in_the_file(toml):
    plan = lines(toml)

    assert plan == [
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


def test_a_second_apply_changes_nothing_and_creates_no_revision(toml):
    lines(toml)
    before = Revision.objects.get().number

    assert lines(toml) == []
    assert Revision.objects.get().number == before


def test_a_dry_run_returns_the_same_plan_and_changes_nothing(toml):
    planned = lines(toml, dry_run=True)

    assert counts() == [0] * 7
    assert lines(toml) == planned


@pytest.mark.parametrize(
    ("old", "new", "expected"),
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
def test_a_change_is_one_line(toml, old, new, expected):
    lines(toml)

    (line,) = lines(toml.replace(old, new))

    assert line.startswith(expected)


def test_the_plan_names_a_changed_secret_without_its_value(toml, monkeypatch):
    lines(toml)
    monkeypatch.setenv("BRIDGE_KEY_CI", "sk-br-" + "Eve1" * 12)

    assert lines(toml) == ["~ key ada/ci: secret"]


def test_rows_removed_from_the_file_are_revoked_or_deleted_but_teams_stay(toml):
    lines(toml)

    plan = lines("")

    assert "- key ada/ci: revoked" in plan
    assert "- upstream openai" in plan
    assert "- route claude-*" in plan
    assert not ApiKey.objects.filter(revoked=None).exists()
    assert not Upstream.objects.exists()
    assert not Budget.objects.exists()
    assert Team.objects.filter(name="ada", managed=False).exists()
    assert lines("") == []


def test_a_key_that_returns_to_the_file_is_valid_again(toml):
    lines(toml)
    lines("")

    assert any(line.startswith("~ key ada/ci") for line in lines(toml))
    assert ApiKey.objects.get(name="ci").revoked is None


def revoked(name, **fields):
    key = ApiKey.objects.get(name=name)
    assert key.revoke()
    return key


def test_a_revoked_key_stays_revoked_and_the_plan_reports_it(toml):
    lines(toml)
    for name in ("ci", "ben"):
        revoked(name)

    planned = lines(toml, dry_run=True)

    assert (
        planned
        == lines(toml)
        == [
            f"= key ada/{name}: revoked {now():%Y-%m-%d}: stays revoked; "
            "a new secret in the file activates it again"
            for name in ("ci", "ben")
        ]
    )
    assert not ApiKey.objects.filter(revoked=None).exists()


def test_a_revoked_key_stays_revoked_after_the_file_drops_and_names_it_again(toml):
    lines(toml)
    key = revoked("ci")
    lines("")
    ben = revoked("ben")  # the file alone had revoked it before

    plan = lines(toml)

    assert [line for line in plan if "stays revoked" in line]
    for one in (key, ben):
        before = one.revoked
        one.refresh_from_db()
        assert one.revoked == before
        assert one.managed


def test_a_key_that_the_admin_revoked_stays_revoked_when_a_file_names_it(toml):
    lines(toml.replace('name = "ci"', 'name = "other"'))
    ApiKey.objects.filter(name="other").update(managed=False, name="ci")
    revoked("ci")

    assert "= key ada/ci: revoked" in "\n".join(lines(toml))
    assert ApiKey.objects.get(name="ci").revoked is not None


def test_a_new_secret_activates_a_revoked_key_and_the_old_secret_stays_revoked(toml, monkeypatch):
    lines(toml)
    revoked("ci")
    monkeypatch.setenv("BRIDGE_KEY_CI", "sk-br-" + "Eve1" * 12)

    (plan,) = [line for line in lines(toml) if "ada/ci" in line]

    assert plan.startswith("~ key ada/ci: secret, revoked 20")
    key, old = ApiKey.objects.get(name="ci"), ApiKey.objects.get(digest=digest_of(SECRET))
    assert (key.revoked, old.successor) == (None, key)
    assert old.revoked is not None
    monkeypatch.setenv("BRIDGE_KEY_CI", SECRET)
    (plan,) = [line for line in lines(toml) if "ada/ci" in line]
    assert plan.startswith("= key ada/ci: the file still has the secret that was revoked on 20")
    key.refresh_from_db()
    assert bytes(key.digest) != digest_of(SECRET)


def test_a_rotated_secret_is_not_replaced_by_the_old_one_of_the_file(toml):
    lines(toml)
    key = ApiKey.objects.get(name="ci")
    old, _ = key.rotate(timedelta())

    plan = lines(toml)

    day = f"{old.created:%Y-%m-%d}"
    assert plan == [
        f"= key ada/ci: the file still has the secret that was rotated on {day}: put the new one in"
    ]
    again = ApiKey.objects.get(name="ci")
    assert (bytes(again.digest), again.managed) == (key.digest, True)


def test_a_key_of_the_file_belongs_to_a_user(toml):
    ada = User.objects.create_user("ada@example.com")
    named = toml.replace('name = "ben"', 'name = "ben"\nuser = "ada@example.com"')
    lines(toml)

    plan = lines(named)

    assert plan == ["~ key ada/ben: user none -> ada@example.com"]
    assert ApiKey.objects.get(name="ben").user == ada
    assert 'user = "ada@example.com"' in export()
    assert lines(toml) == ["~ key ada/ben: user ada@example.com -> none"]


def test_a_team_of_the_file_lets_its_members_make_keys(toml):
    limits = 'member_keys = { count = 2, days = 30, scopes = ["messages"], models = ["claude-*"] }'

    lines(toml.replace("retention_days = 30", f"retention_days = 30\n{limits}"))

    team = Team.objects.get(name="ada")
    assert team.member_keys == {
        "count": 2, "days": 30, "scopes": ["messages"], "models": ["claude-*"]
    }  # fmt: skip
    [exported] = [team for team in read(export()).teams if team["name"] == "ada"]
    assert exported["member_keys"] == team.member_keys  # jsonb of PostgreSQL has another order


def test_a_key_without_a_secret_has_no_digest(toml):
    lines(toml)

    key = ApiKey.objects.get(name="ben")

    assert (key.digest, key.prefix, key.has_secret) == (None, "", False)


# name: (valid text, invalid text, part of the error); each error is found only while applying
APPLY_ERRORS = {
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
    "nearest user": (
        'name = "ben"',
        'name = "ben"\nuser = "bem"',
        "keys[1].user: no user 'bem'",
    ),
    "no scheme": (
        "https://api.openai.com/v1",
        "api.openai.com/v1",
        "upstreams[0].base_url: base URL",
    ),
    "password in URL": ("https://api", "https://u:p@api", "cannot contain a user or password"),
    "clear text": (
        "https://api.openai.com/v1",
        "http://api.openai.com/v1",
        "unencrypted to a public host",
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


@pytest.mark.parametrize("name", APPLY_ERRORS)
def test_an_error_found_while_applying_changes_nothing(toml, name):
    old, new, message = APPLY_ERRORS[name]
    assert old in toml

    with pytest.raises(ConfigError) as caught:
        lines(toml.replace(old, new))

    assert message in str(caught.value)
    assert counts() == [0] * 7


def test_two_keys_cannot_share_a_secret(toml):
    twin = '\n[[keys]]\nteam = "ada"\nname = "mallory"\nsecret = { env = "BRIDGE_KEY_CI" }\n'

    with pytest.raises(ConfigError, match="key ada/ci has the same secret"):
        lines(toml + twin)


def test_a_revoked_secret_that_is_replaced_cannot_be_given_to_another_key(toml, monkeypatch):
    lines(toml)
    ApiKey.objects.get(name="ci").revoke()
    monkeypatch.setenv("BRIDGE_KEY_NEW", "sk-br-" + "Eve1" * 12)
    replaced = toml.replace('"BRIDGE_KEY_CI"', '"BRIDGE_KEY_NEW"')
    twin = '\n[[keys]]\nteam = "ada"\nname = "mallory"\nsecret = { env = "BRIDGE_KEY_CI" }\n'

    with pytest.raises(ConfigError, match=r"keys\[2\].secret: key ada/ci has the same secret"):
        lines(replaced + twin)


@pytest.mark.parametrize(
    ("kind", "setting", "path"),
    [
        ("keys", "secret = {}", "keys[0].secret: a secret is"),
        ("keys", "expires = 0001-01-01T00:00:00+14:00", "keys[0].expires: a date is written"),
        ("upstreams", "api_key = {}", "upstreams[0].api_key: a secret is"),
        (
            "upstreams",
            'connection = { proxy_auth = "user:sk-inline" }',
            "upstreams[0].connection.proxy_auth: Expected object, got str",
        ),
    ],
)
def test_a_wrong_secret_or_expiry_is_an_error_with_its_path(kind, setting, path):
    names = {"keys": 'team = "t"', "upstreams": 'dialect = "chat"\nbase_url = "http://vllm/v1"'}

    with pytest.raises(ConfigError) as caught:
        read(f'[[{kind}]]\nname = "a"\n{names[kind]}\n{setting}\n')

    assert str(caught.value).startswith(path)
    assert "sk-inline" not in str(caught.value)


def test_a_price_in_force_is_never_overwritten(toml):
    lines(toml)

    with pytest.raises(ConfigError, match="never overwritten"):
        lines(toml.replace('input = "1.25"', 'input = "2.50"'))


def test_an_upstream_that_a_route_of_the_admin_uses_is_not_deleted(toml):
    lines(toml)
    route = Route.objects.create(model="mine")
    RouteTarget.objects.create(route=route, upstream=Upstream.objects.get(name="vllm"))

    with pytest.raises(ConfigError, match="route 'mine' of the admin still has it as a target"):
        lines("")


def test_an_upstream_with_a_mistake_is_not_gone_from_the_file(toml):
    lines(toml)
    vllm = Upstream.objects.get(name="vllm")
    vllm.store_secret("sk-typed")
    vllm.save()
    other = toml.replace(vllm.base_url, "http://other:8000/v1")
    assert other != toml

    with pytest.raises(ConfigError) as caught:
        lines(other)

    assert str(caught.value).startswith("upstreams[1].base_url: 'http://other:8000/v1', but the")
    assert "gone" not in str(caught.value)


def test_a_webhook_gets_no_events_of_the_file_that_creates_it():
    upstream = (
        '[[upstreams]]\nname = "u"\ndialect = "chat"\nbase_url = "http://vllm/v1"\nenabled = {}\n'
    )
    webhook = '[[webhooks]]\nname = "w"\nurl = "https://a.example"\nsecret = { env = "W" }\n'

    lines(upstream.format("false") + webhook)
    assert not WebhookEvent.objects.exists()
    lines(upstream.format("true") + webhook)
    lines(upstream.format("false") + webhook)

    (event,) = WebhookEvent.objects.all()
    assert (event.type, event.deliveries.count()) == ("upstream.disabled", 1)


def test_a_price_of_an_upstream_that_is_gone_from_the_file_is_a_mistake(toml):
    lines(toml)
    price = toml[toml.index("[[prices]]") :].partition("\n\n")[0]

    with pytest.raises(ConfigError, match=r"prices\[0\]\.upstream: upstream 'openai' is gone"):
        lines(price)

    assert Price.objects.count() == 1


def test_an_upstream_that_is_gone_takes_all_its_prices_with_it_and_the_plan_lists_them(toml):
    lines(toml)
    openai = Upstream.objects.get(name="openai")
    Price.objects.create(upstream=openai, model="gpt-5-mini", since="2026-01-01", input=1, output=1)

    plan = lines("")

    assert [line for line in plan if "price" in line or "upstream" in line] == [
        "- price openai gpt-5-mini since 2026-01-01",
        "- price openai gpt-5.2 since 2026-01-01",
        "- upstream openai",
        "- upstream vllm",
    ]
    assert Price.objects.count() == 0


def test_an_export_applied_again_changes_nothing(toml):
    lines(toml)

    exported = export()

    assert lines(exported) == []
    assert SECRET not in exported


def test_an_export_creates_the_same_configuration_in_an_empty_database(toml):
    lines(toml)
    exported = export()
    for kind in (Budget, ApiKey, RouteTarget, Route, Price, Upstream, Team):
        kind.objects.all().delete()

    lines(exported)

    assert export() == exported


def test_an_export_has_no_starter_prices_unless_they_were_changed_or_all_are_requested(toml):
    first_start.create_starter_prices()
    lines(toml)
    changed = Price.objects.filter(upstream=None, managed=False).first()
    Price.objects.filter(pk=changed.pk).update(input=77)

    exported = [entry["model"] for entry in tomllib.loads(export())["prices"]]
    everything = tomllib.loads(export(starter=True))["prices"]

    assert exported.count(changed.model) == 1
    assert len(exported) == toml.count("[[prices]]") + 1
    assert len(everything) == toml.count("[[prices]]") + len(starter_prices())


def test_a_large_file_is_compared_and_written_in_bulk(django_assert_max_num_queries):
    """The queries do not grow with the file, and a file without a change writes nothing."""
    rows = "".join(
        f'[[teams]]\nname = "t{n}"\nlimits = {{ rpm = {n + 1} }}\n'
        f'[[keys]]\nteam = "t{n}"\nname = "k"\n'
        for n in range(100)
    )
    upstream = '[[upstreams]]\nname = "u"\ndialect = "chat"\nbase_url = "http://vllm:8000/v1"\n'
    routes = "".join(
        f'[[routes]]\nmodel = "m{n}"\ntargets = [{{ upstream = "u" }}]\n' for n in range(100)
    )
    with django_assert_max_num_queries(60):
        assert len(lines(rows + upstream + routes)) == 401

    with django_assert_max_num_queries(20) as unchanged:
        assert lines(rows + upstream + routes) == []
    with django_assert_max_num_queries(60):
        assert len(lines(rows.replace("{ rpm = ", "{ tpm = ") + upstream + routes)) == 100
    with django_assert_max_num_queries(60):
        assert len(lines(rows + upstream)) == 200

    assert {query["sql"].split()[0] for query in unchanged} <= {"SELECT", "SAVEPOINT", "RELEASE"}
    assert AuditEntry.objects.filter(model="team", action="add").count() == 100
    assert AuditEntry.objects.filter(model="route", action="delete").count() == 100
