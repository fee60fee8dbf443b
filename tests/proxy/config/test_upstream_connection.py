"""The settings of an upstream's connection: what is accepted, and which proxy applies."""

import pytest
from django.core.exceptions import ValidationError

from proxy.models import Upstream
from proxy.models.setup.upstream_connection import (
    DIRECT,
    HttpProxy,
    resolve_connection,
    secret_files_in,
    token_transport,
)
from proxy.secrets import ConfigError
from tests.for_each import for_each

PUBLIC = "https://api.example.com/v1"
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")
ENVIRONMENT_PROXY = "http://user:p%40ss@proxy.example:3128"
BY_ENVIRONMENT = HttpProxy("proxy.example", 3128, "Basic dXNlcjpwQHNz")


@pytest.fixture(autouse=True)
def no_proxy_in_the_environment(monkeypatch):
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@for_each(
    ("stored", "message"),
    [
        ({"prxy": "http://p:1"}, "unknown key 'prxy'"),
        ({"proxy": "socks5://p:1"}, "must look like http://host:port or https://host:port"),
        ({"proxy": "http://p"}, "must look like http://host:port"),
        ({"proxy": "http://p:99999"}, "must look like http://host:port"),
        ({"proxy": "http://user:secret@p:1"}, "proxy cannot contain a user or password"),
        ({"proxy_auth": {"env": "A"}}, "proxy_auth needs a proxy"),
        ({"client_certificate": {"cert": "/a"}}, "required field key"),
        ({"headers": {"X-Upper": "a"}}, "headers"),
        ({"headers": {"x-a": "line\nbreak"}}, "headers"),
        ({"headers": {"x-a": {"env": "A", "file": "/b"}}}, "headers"),
        ({"headers": {"authorization": "Bearer x"}}, "headers: 'authorization' cannot be set"),
        ({"headers": {"host": "elsewhere"}}, "headers: 'host' cannot be set"),
        ({"headers": {f"x-{n}": "a" for n in range(33)}}, "headers"),
        ({"forward_headers": ["*"]}, "forward_headers"),
        ({"forward_headers": ["x-api-*"]}, "'x-api-*' matches 'x-api-key'"),
        ({"forward_headers": ["cookie"]}, "'cookie' matches 'cookie'"),
        ({"headers": {"x-a": "1"}, "forward_headers": ["x-*"]}, "also in forward_headers"),
        ([], "object"),
    ],
)
def test_a_wrong_setting_is_rejected_and_named(stored, message):
    with pytest.raises(ValidationError) as rejected:
        Upstream(connection=stored).clean_fields(
            {field.name for field in Upstream._meta.fields} - {"connection"}
        )

    assert message in " ".join(rejected.value.messages)
    assert "user:secret" not in " ".join(rejected.value.messages)


@pytest.mark.parametrize(
    ("environment", "stored", "base_url", "proxy"),
    [
        ({}, {}, PUBLIC, None),
        ({"HTTPS_PROXY": ENVIRONMENT_PROXY}, {}, PUBLIC, BY_ENVIRONMENT),
        ({"https_proxy": "proxy.example:3128"}, {}, PUBLIC, HttpProxy("proxy.example", 3128)),
        ({"ALL_PROXY": ENVIRONMENT_PROXY}, {}, PUBLIC, BY_ENVIRONMENT),
        ({"HTTP_PROXY": ENVIRONMENT_PROXY}, {}, PUBLIC, None),
        ({"HTTP_PROXY": ENVIRONMENT_PROXY}, {}, "http://vllm:8000/v1", BY_ENVIRONMENT),
        ({"HTTPS_PROXY": ENVIRONMENT_PROXY, "NO_PROXY": "example.com"}, {}, PUBLIC, None),
        ({"HTTPS_PROXY": ENVIRONMENT_PROXY, "NO_PROXY": "*"}, {}, PUBLIC, None),
        ({"HTTPS_PROXY": ENVIRONMENT_PROXY}, {}, "https://127.0.0.1:8443/v1", None),
        ({"HTTPS_PROXY": ENVIRONMENT_PROXY}, {}, "https://localhost/v1", None),
        ({"HTTPS_PROXY": "https://proxy.example"}, {}, PUBLIC,
         HttpProxy("proxy.example", 443, tls=True)),
        ({"HTTPS_PROXY": ENVIRONMENT_PROXY}, {"proxy": "none"}, PUBLIC, None),
        ({"HTTPS_PROXY": ENVIRONMENT_PROXY, "NO_PROXY": "*"}, {"proxy": "http://own:8080"}, PUBLIC,
         HttpProxy("own", 8080)),
    ],
)  # fmt: skip
def test_the_proxy_of_the_upstream_wins_over_the_environment(
    monkeypatch, environment, stored, base_url, proxy
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert resolve_connection(stored, base_url).proxy == proxy


def test_without_settings_nothing_is_read():
    assert resolve_connection({}, PUBLIC) is DIRECT


def test_secrets_come_from_the_environment_or_a_file_and_are_not_shown(monkeypatch, tmp_path):
    path = tmp_path / "header"
    path.write_text("secret-of-a-file\n")
    monkeypatch.setenv("PROXY_AUTH", "user:p@ss")
    stored = {
        "proxy": "http://proxy.example:3128",
        "proxy_auth": {"env": "PROXY_AUTH"},
        "headers": {"x-team": "platform", "x-secret": {"file": str(path)}},
    }

    found = resolve_connection(stored, PUBLIC)

    assert found.proxy == BY_ENVIRONMENT
    assert found.headers == {"x-team": "platform", "x-secret": "secret-of-a-file"}
    assert found.secrets == ("secret-of-a-file",)
    assert "secret-of-a-file" not in repr(found)
    assert "dXNlcjpwQHNz" not in repr(found)
    assert dict(secret_files_in(stored)) == {"header x-secret": str(path)}


@for_each(
    ("stored", "message"),
    [
        ({"ca_file": "/no/such.pem"}, "file /no/such.pem cannot be read: No such file"),
        ({"ca_file": __file__}, f"file {__file__} cannot be used"),
        ({"client_certificate": {"cert": __file__, "key": __file__}}, "cannot be used"),
        ({"proxy": "http://p:1", "proxy_auth": {"env": "NOT_SET"}}, "variable NOT_SET is missing"),
        ({"headers": {"x-a": {"env": "NOT_SET"}}}, "variable NOT_SET is missing"),
    ],
)
def test_a_file_or_secret_that_cannot_be_read_is_named(stored, message):
    with pytest.raises(ConfigError) as rejected:
        resolve_connection(stored, PUBLIC)

    assert message in str(rejected.value)


def test_another_proxy_of_the_environment_is_rejected(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "socks5://proxy.example:3128")

    with pytest.raises(ConfigError, match="must look like http://host:port"):
        resolve_connection({}, PUBLIC)


@pytest.mark.parametrize(
    ("stored", "proxies"),
    [
        ({}, None),
        ({"proxy": "none"}, {"no_proxy": "*"}),
        ({"proxy": "https://p:1"}, {"https": "https://p:1"}),
        ({"proxy": "http://p:1", "proxy_auth": {"env": "PROXY_AUTH"}},
         {"https": "http://us%40er:p%3Aa%2Fss@p:1"}),
    ],
)  # fmt: skip
def test_token_endpoints_are_called_through_the_upstream_s_proxy(monkeypatch, stored, proxies):
    monkeypatch.setenv("PROXY_AUTH", "us@er:p:a/ss")

    found = token_transport(stored)

    assert found.proxies == proxies
    assert "p%3Aa%2Fss" not in repr(found)
