"""What the first start makes, and what a later one leaves alone."""

from io import StringIO

import pytest
from django.contrib.auth import get_user_model

from proxy.config.first_start import AdminPassword, fill_gaps
from proxy.management.commands.serve import Command
from proxy.models import ApiKey, Price, Revision, Route, Team, Upstream
from proxy.secrets import ConfigError, digest_of

pytestmark = pytest.mark.django_db
SANDBOX_URL = "http://127.0.0.1:4242/v1"


def targets(model):
    route = Route.objects.get(model=model)
    return [(target.upstream.name, target.model) for target in route.targets.all()]


def test_it_makes_a_team_a_key_an_admin_and_a_way_to_the_sandbox():
    made = fill_gaps(SANDBOX_URL, {})

    key = ApiKey.objects.get()
    assert (key.team.name, key.scopes) == ("default", ["messages"])
    assert bytes(key.digest) == digest_of(made.key)
    assert get_user_model().objects.get(username="admin").check_password(made.admin_password)
    assert targets("claude-*") == [("sandbox", "sandbox")]
    assert targets("sandbox-chat*") == [("sandbox-chat", "")]


def test_whoever_brings_the_password_makes_its_user():
    password = AdminPassword()
    made = fill_gaps(SANDBOX_URL, {}, password=password)
    assert made.admin_password == password.text
    assert not get_user_model().objects.exists()

    password.make_user()

    assert get_user_model().objects.get(is_superuser=True).check_password(password.text)


@pytest.mark.django_db(transaction=True)
def test_a_user_that_cannot_be_made_is_told_and_the_gateway_goes_on():
    get_user_model().objects.create_user("admin")
    told = StringIO()

    Command(stderr=told)._make_admin(AdminPassword())

    assert "the admin user cannot be made: UNIQUE constraint failed" in told.getvalue()


def test_a_second_start_makes_nothing():
    fill_gaps(SANDBOX_URL, {})
    before = Revision.objects.get().number

    made = fill_gaps(SANDBOX_URL, {})

    assert not made.anything
    assert Revision.objects.get().number == before


def test_an_installation_made_by_file_gets_no_default_key():
    Team.objects.create(name="ada", managed=True)
    Upstream.objects.create(name="own", dialect="chat", base_url="http://vllm:8000/v1")

    made = fill_gaps(SANDBOX_URL, {})

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
def test_a_providers_key_in_the_environment_is_all_it_takes(environ, name, model, base_url):
    assert fill_gaps(SANDBOX_URL, environ).upstream == name

    assert targets("claude-*") == [(name, model)]
    assert Upstream.objects.get().base_url == base_url


def test_a_shell_set_up_to_call_this_gateway_is_not_taken_for_a_provider():
    fill_gaps(SANDBOX_URL, {"ANTHROPIC_API_KEY": "sk-br-own"})

    assert targets("claude-*") == [("sandbox", "sandbox")]


def test_a_providers_key_that_comes_later_sends_the_sandbox_away():
    fill_gaps(SANDBOX_URL, {})

    made = fill_gaps(SANDBOX_URL, {"OPENAI_API_KEY": "k"})

    assert (made.key, made.upstream) == ("", "openai")
    assert targets("claude-*") == [("openai", "gpt-5.2")]
    assert list(Upstream.objects.values_list("name", flat=True)) == ["openai"]
    assert not Route.objects.filter(model__startswith="sandbox").exists()


def test_a_bad_base_url_is_refused_by_its_variable():
    with pytest.raises(ConfigError, match="OPENAI_BASE_URL"):
        fill_gaps(SANDBOX_URL, {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "vllm:8000"})

    assert not Team.objects.exists()


def test_the_sandbox_may_move_to_another_port():
    fill_gaps(SANDBOX_URL, {})

    fill_gaps("http://127.0.0.1:4343/v1", {})

    assert Upstream.objects.get(name="sandbox").base_url == "http://127.0.0.1:4343/v1"


def test_the_starter_prices_have_a_source_and_a_date():
    fill_gaps(SANDBOX_URL, {})

    shipped = Price.objects.filter(upstream=None)
    assert shipped.count() > 20
    assert all(price.source.startswith("https://") for price in shipped)
    assert all("check before you bill" in price.source for price in shipped)
    assert all(price.since.year >= 2026 for price in shipped)
    assert all(price.output > price.input > 0 for price in shipped)


def test_the_sandbox_costs_nothing_and_is_never_charged_as_a_real_model():
    fill_gaps(SANDBOX_URL, {})

    (price,) = Price.objects.filter(upstream__name="sandbox")

    assert (price.model, price.input, price.output) == ("sandbox", 0, 0)


def test_a_password_that_the_admin_would_refuse_is_refused_here(settings):
    settings.ADMIN_PASSWORD = "hunter2"

    with pytest.raises(ConfigError, match="BRIDGE_ADMIN_PASSWORD: This password is too short"):
        fill_gaps(SANDBOX_URL, {})

    assert not Team.objects.exists()
