"""The name and version of a client are parsed from its user agent."""

from proxy.gateway.http.request_headers import parse_user_agent
from tests.for_each import for_each


@for_each(
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
def test_the_user_agent_gives_the_client_s_name_and_version(agent, name, version):
    assert parse_user_agent(agent) == (name, version)
