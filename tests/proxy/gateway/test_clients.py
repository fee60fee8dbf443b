"""Which client sent a request, from its user agent as it was seen on the wire."""

import pytest

from proxy.gateway.head import client_of


@pytest.mark.parametrize(
    ("agent", "name", "version"),
    [
        ("claude-cli/2.1.329 (external, cli)", "claude-cli", "2.1.329"),
        ("Anthropic/Python 2.12.0", "Anthropic/Python", "2.12.0"),
        ("AsyncAnthropic/Python 0.74.1", "AsyncAnthropic/Python", "0.74.1"),
        ("Anthropic/JS 1.12.0", "Anthropic/JS", "1.12.0"),
        ("ai/7.0.173 ai-sdk/provider-utils/5.0.9 runtime/node.js/v20", "ai", "7.0.173"),
        ("ai-sdk/anthropic/3.0.1 runtime/node", "ai-sdk/anthropic", "3.0.1"),
        ("python-httpx/0.28.1", "python-httpx", "0.28.1"),
        ("Go-http-client/v2.0", "Go-http-client", "2.0"),
        ("a tool of 3 friends", "a", ""),
        ("", "", ""),
    ],
)
def test_a_client_has_a_name_and_a_version(agent, name, version):
    assert client_of(agent) == (name, version)
