"""A first start creates the initial rows; a later start changes none of them."""

from io import StringIO

import pytest
from django.contrib.auth import get_user_model

from proxy.bootstrap.first_start import AdminPassword, create_missing
from proxy.management.commands.serve import Command
from proxy.models import ApiKey, Price, Revision, Route, Team, Upstream
from proxy.secrets import ConfigError, digest_of

pytestmark = pytest.mark.django_db
SANDBOX_URL = "http://127.0.0.1:4242/v1"


def targets(model):
    route = Route.objects.get(model=model)
    return [(target.upstream.name, target.model) for target in route.targets.all()]


def test_a_first_start_creates_team_key_admin_and_sandbox_routes():
    made = create_missing(SANDBOX_URL, {})

    key = ApiKey.objects.get()
    assert (key.team.name, key.scopes) == ("default", ["messages"])
    assert bytes(key.digest) == digest_of(made.key)
    assert get_user_model().objects.get(username="admin").check_password(made.admin_password)
    assert targets("claude-*") == [("sandbox", "sandbox")]
    assert targets("sandbox-chat*") == [("sandbox-chat", "")]


def test_a_caller_with_a_password_creates_the_user_itself():
    password = AdminPassword()
    made = create_missing(SANDBOX_URL, {}, password=password)
    assert made.admin_password == password.text
    assert not get_user_model().objects.exists()

    password.make_user()

    assert get_user_model().objects.get(is_superuser=True).check_password(password.text)


@pytest.mark.django_db(transaction=True)
def test_an_error_while_creating_the_user_is_printed_and_does_not_stop_the_start():
    get_user_model().objects.create_user("admin")
    stderr_text = StringIO()

    Command(stderr=stderr_text).make_admin(AdminPassword())

    assert "the admin user cannot be created: UNIQUE constraint failed" in stderr_text.getvalue()


def test_a_second_start_creates_nothing():
    create_missing(SANDBOX_URL, {})
    before = Revision.objects.get().number

    made = create_missing(SANDBOX_URL, {})

    assert not made.anything
    assert Revision.objects.get().number == before


def test_an_installation_made_by_file_gets_no_default_key():
    Team.objects.create(name="ada", managed=True)
    Upstream.objects.create(name="own", dialect="chat", base_url="http://vllm:8000/v1")

    made = create_missing(SANDBOX_URL, {})

    assert made.key == ""
    assert not ApiKey.objects.exists()
    assert not Upstream.objects.filter(name="sandbox").exists()


@pytest.mark.parametrize(
    ("environ", "name", "model", "base_url"),
    [
        ({"OPENAI_API_KEY": "k"}, "openai", "gpt-5.2", "https://api.openai.com/v1"),
        ({"ANTHROPIC_API_KEY": "k"}, "anthropic", "", "https://api.anthropic.com"),
        (
            {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"},
            "openai",
            "gpt-5.2",
            "https://api.openai.com/v1",
        ),
        (
            {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://vllm:8000/v1/"},
            "openai",
            "gpt-5.2",
            "http://vllm:8000/v1",
        ),
    ],
)
def test_a_provider_key_in_the_environment_creates_an_upstream_and_a_route(
    environ, name, model, base_url
):
    assert create_missing(SANDBOX_URL, environ).upstream == name

    assert targets("claude-*") == [(name, model)]
    assert Upstream.objects.get().base_url == base_url


def test_a_gateway_key_in_the_environment_is_not_a_provider_key():
    create_missing(SANDBOX_URL, {"ANTHROPIC_API_KEY": "sk-br-own"})

    assert targets("claude-*") == [("sandbox", "sandbox")]


def test_a_provider_key_on_a_later_start_deletes_the_sandbox():
    create_missing(SANDBOX_URL, {})

    made = create_missing(SANDBOX_URL, {"OPENAI_API_KEY": "k"})

    assert (made.key, made.upstream) == ("", "openai")
    assert targets("claude-*") == [("openai", "gpt-5.2")]
    assert list(Upstream.objects.values_list("name", flat=True)) == ["openai"]
    assert not Route.objects.filter(model__startswith="sandbox").exists()


def test_an_upstream_of_the_admin_removes_the_sandbox_and_the_routes_that_have_only_it():
    create_missing(SANDBOX_URL, {})
    own = Upstream.objects.create(name="own", dialect="chat", base_url="http://127.0.0.1:1/v1")
    mixed = Route.objects.create(model="mixed")
    mixed.targets.create(upstream=own, weight=1)
    mixed.targets.create(upstream=Upstream.objects.get(name="sandbox"), weight=0)
    assert targets("claude-*") == [("sandbox", "sandbox")]

    create_missing(SANDBOX_URL, {})

    assert list(Upstream.objects.values_list("name", flat=True)) == ["own"]
    assert list(Route.objects.values_list("model", flat=True)) == ["mixed"]
    assert [each.upstream for each in mixed.targets.all()] == [own]


def test_an_invalid_base_url_is_reported_by_its_variable():
    with pytest.raises(ConfigError, match="OPENAI_BASE_URL"):
        create_missing(SANDBOX_URL, {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "vllm:8000"})

    assert not Team.objects.exists()


def test_the_sandbox_may_move_to_another_port():
    create_missing(SANDBOX_URL, {})

    create_missing("http://127.0.0.1:4343/v1", {})

    assert Upstream.objects.get(name="sandbox").base_url == "http://127.0.0.1:4343/v1"


def test_the_starter_prices_have_a_source_and_a_date():
    create_missing(SANDBOX_URL, {})

    shipped = Price.objects.filter(upstream=None)
    assert shipped.count() > 20
    assert all(price.source.startswith("https://") for price in shipped)
    assert all("check before you bill" in price.source for price in shipped)
    assert all(price.since.year >= 2026 for price in shipped)
    assert all(price.output > price.input > 0 for price in shipped)


def test_the_sandbox_has_a_price_of_zero():
    create_missing(SANDBOX_URL, {})

    (price,) = Price.objects.filter(upstream__name="sandbox")

    assert (price.model, price.input, price.output) == ("sandbox", 0, 0)


def test_a_weak_admin_password_prevents_the_start(settings):
    settings.ADMIN_PASSWORD = "hunter2"

    with pytest.raises(ConfigError, match="BRIDGE_ADMIN_PASSWORD: This password is too short"):
        create_missing(SANDBOX_URL, {})

    assert not Team.objects.exists()
