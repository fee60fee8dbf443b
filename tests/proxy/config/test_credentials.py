"""``[upstreams.credentials]``: what is accepted, what is stored, and what needs an extra."""

import sys
import tomllib

import pytest
from django.core.exceptions import ValidationError

from proxy.admin.setup.upstream_form import UpstreamForm
from proxy.bootstrap.env_check import check_environment
from proxy.config.apply import apply
from proxy.config.dump import export
from proxy.config.load import read
from proxy.models import Upstream
from proxy.secrets import ConfigError
from tests.for_each import for_each

pytestmark = pytest.mark.django_db

UPSTREAM = """
[[upstreams]]
name = "cloud"
dialect = "anthropic"
base_url = "https://bedrock-runtime.eu-west-1.amazonaws.com"
profile = "bedrock"
{line}
[upstreams.credentials]
{table}
"""
KINDS = {
    "aws": 'kind = "aws"\nprofile = "bridge"\nregion = "eu-west-1"',
    "google": 'kind = "google"',
    "azure": 'kind = "azure"\nmethod = "client_secret"\ntenant_id = "t"\nclient_id = "c"\n'
    'client_secret = { env = "BRIDGE_TEST_ENTRA" }',
    "command": 'kind = "command"\ncommand = ["/usr/bin/token", "--json"]',
}


def parsed(table: str, line: str = ""):
    return read(UPSTREAM.format(table=table, line=line))


@pytest.mark.parametrize("kind", KINDS)  # each is created
def test_a_table_is_stored_without_its_defaults_and_dumped_again(kind):
    apply(parsed(KINDS[kind]))

    stored = Upstream.objects.get(name="cloud")
    assert stored.credentials == tomllib.loads(KINDS[kind])
    assert apply(parsed(KINDS[kind])) == [], "applying it again changes nothing"
    again = tomllib.loads(export())["upstreams"][0]
    assert again["credentials"] == stored.credentials


@for_each(
    ("table", "line", "fault"),
    [
        ('kind = "gcp"', "", "upstreams[0].credentials"),
        ('kind = "aws"\nregoin = "x"', "", "regoin"),
        ('kind = "azure"', "", "method"),
        ('kind = "azure"\nmethod = "certificate"', "", "needs tenant_id"),
        ('kind = "command"\ncommand = []', "", "command"),
        ('kind = "command"\ncommand = ["x"]\ntimeout_s = 1000', "", "timeout_s"),
        ('kind = "aws"', 'api_key = { env = "X" }', "an api_key or credentials, not both"),
        ('kind = "aws"', 'api_version = "yesterday"', "is not an api-version"),
        ('kind = "azure"\nmethod = "client_secret"\nclient_secret = "hunter2-hunter2"', "",
         "client_secret"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_refused_with_its_path(table, line, fault):
    with pytest.raises(ConfigError) as error:
        apply(parsed(table, line))

    assert fault in str(error.value)
    assert "hunter2" not in str(error.value)
    assert not Upstream.objects.filter(name="cloud").exists()


def test_only_the_file_can_set_a_command():
    apply(parsed(KINDS["command"]))
    row = Upstream.objects.get(name="cloud")
    row.clean()
    assert row.credential_settings().command == ["/usr/bin/token", "--json"]

    row.managed = False

    with pytest.raises(ValidationError, match=r"only be set in bridge\.toml"):
        row.clean()
    with pytest.raises(ConfigError, match=r"only be set in bridge\.toml"):
        row.credential_settings()


def test_a_missing_extra_is_named(monkeypatch):
    apply(parsed(KINDS["google"]))
    monkeypatch.setitem(sys.modules, "google.auth", None)  # as if it were not installed

    with pytest.raises(ConfigError, match=r"pip install 'messages-bridge\[google\]'"):
        Upstream.objects.get(name="cloud").credential()


def test_the_variable_of_a_client_secret_is_known():
    file = parsed(KINDS["azure"])

    check_environment({"BRIDGE_TEST_ENTRA": "x"}, file)
    apply(file)
    check_environment({"BRIDGE_TEST_ENTRA": "x"}, None)


@for_each(
    ("text", "fault"),
    [
        ("kind = aws\nregion = eu-west-1", ""),
        ("kind = gcp", "Invalid value 'gcp'"),
        ("kind = command\ncommand.0 = /bin/sh", "credentials"),
    ],
)
def test_the_admins_form_checks_credentials(text, fault):
    form = UpstreamForm(
        {"name": "cloud", "dialect": "anthropic", "base_url": "https://up.example.com",
         "profile": "bedrock", "when_client_leaves": "abort", "connection_reuse": "shared",
         "credentials": text}
    )  # fmt: skip

    assert form.is_valid() is not bool(fault), form.errors
    if fault:
        assert fault in str(form.errors.as_data())
    else:
        assert form.save().credentials == {"kind": "aws", "region": "eu-west-1"}
