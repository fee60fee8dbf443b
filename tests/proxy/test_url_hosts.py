"""Spellings of addresses in configured URLs: what they mean, and that only one is accepted."""
# ruff: noqa: RUF001 - look-alikes of digits are the point

import socket

import pytest
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError

from proxy.models import Upstream, Webhook
from proxy.models.setup.webhooks import check_url
from proxy.signin.oidc_settings import is_safe_url
from proxy.url_hosts import address_of, host_error, is_private
from tests.fakes.servers.served_client import ServedClient
from tests.proxy.admin import factories

METADATA = [
    "169.254.169.254", "2852039166", "0xA9FEA9FE", "0251.0376.0251.0376", "169.254.43518",
    "169.16689662", "0xa9.254.0251.254", "169.254.169.254.", "[::ffff:169.254.169.254]",
    "[::ffff:a9fe:a9fe]", "[::169.254.169.254]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]",
    "[fe80::1%25eth0]", "[fd00:ec2::254]", "100.100.100.200", "１６９.２５４.１６９.２５４",
    "169。254。169。254", "①⑥⑨.254.169.254", "169.254.169.0xfffe",
]  # fmt: skip
PERMITTED = ["127.0.0.1", "[::1]", "10.1.2.3", "[fd12::7]", "vllm", "localhost", "8.8.8.8",
             "api.example.com", "1.example.com", "xn--bcher-kva.example", "node-7"]  # fmt: skip


def bare(host):
    return host.strip("[]")


@pytest.mark.parametrize("host", METADATA)
def test_no_spelling_of_a_metadata_service_is_accepted_by_any_rule(host):
    assert host_error(bare(host))
    for scheme in ("http", "https"):
        with pytest.raises(ValidationError):
            check_url(f"{scheme}://{host}/latest")
    assert not is_safe_url(f"https://{host}/")


@pytest.mark.parametrize("host", PERMITTED)
def test_other_hosts_are_accepted(host):
    assert host_error(bare(host)) == ""


@pytest.mark.parametrize("host", ["134744072", "0x08080808", "010.010.010.010", "[::ffff:8.8.8.8]"])
def test_another_spelling_of_a_public_address_is_not_private(host):
    assert not is_private(bare(host))
    assert host_error(bare(host))


@pytest.mark.parametrize("text", ["1", "0x7f.1", "0177.1", "127.1", "2130706433", "017700000001"])
def test_numbers_mean_what_the_resolver_of_the_system_reads(text):
    assert str(address_of(text)) == socket.inet_ntoa(socket.inet_aton(text))


@pytest.mark.django_db
@pytest.mark.parametrize("host", METADATA)
def test_the_api_sets_no_such_url(host):
    root = get_user_model().objects.create_superuser("root")
    secret = factories.key("config", scopes=["config:write"], user=root)[1]
    client = ServedClient()

    for path, body in (
        ("webhooks", {"name": "w", "url": f"http://{host}/", "events": []}),
        ("upstreams", {"name": "u", "dialect": "chat", "base_url": f"http://{host}/v1"}),
        (
            "upstreams",
            {
                "name": "u",
                "dialect": "chat",
                "base_url": "http://vllm/v1",
                "connection": {"proxy": f"http://{host}:3128"},
            },
        ),
    ):
        response = client.post(
            f"/api/v1/{path}/", body, "application/json", headers={"x-api-key": secret}
        )
        assert response.status_code == 400, (path, response.content)
        assert b"address" in response.content

    assert not Webhook.objects.exists()
    assert not Upstream.objects.filter(name="u").exists()
