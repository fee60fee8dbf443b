"""A bridge.toml with example rows, and the commands of the project as processes."""

import os

import pytest

from tests.fakes.servers.command_server import commands_without_settings

SECRET = "sk-br-" + "Ada0" * 12

BRIDGE_TOML = """
[[upstreams]]
name = "openai"
dialect = "responses"
base_url = "https://api.openai.com/v1"
api_key = { env = "OPENAI_API_KEY" }
profile = "openai"
capabilities = { required_tool_choice = true }
timeouts = { connect_s = 5, first_byte_s = 120, idle_s = 120, total_s = 1800 }

[[upstreams]]
name = "vllm"
dialect = "chat"
base_url = "http://vllm:8000/v1"
when_client_leaves = "drain"
connection_reuse = "key"
connection = { proxy = "http://proxy:3128", headers = { x-a = "b", x-c = { env = "C" } } }

[[routes]]
model = "claude-*"
targets = [
  { upstream = "openai", model = "gpt-5.2" },
  { upstream = "vllm", model = "qwen3", weight = 1, when = { client = "claude-cli *" } },
]

[[prices]]
upstream = "openai"
model = "gpt-5.2"
since = 2026-01-01
usd = { input = "1.25", output = "10", cache_read = "0.125" }

[[teams]]
name = "ada"
retention_days = 30
budgets = [{ usd = "500", period = "month" }]
limits = { rpm = 600, tpm = 2000000, concurrency = 100 }
models = ["claude-*"]

[[keys]]
team = "ada"
name = "ci"
secret = { env = "BRIDGE_KEY_CI" }
expires = 2027-01-01

[[keys]]
team = "ada"
name = "ben"
"""


@pytest.fixture
def toml(monkeypatch):
    """Return the text of a bridge.toml, and set its secret in the environment."""
    monkeypatch.setenv("BRIDGE_KEY_CI", SECRET)
    return BRIDGE_TOML


@pytest.fixture
def manage(tmp_path):
    """Run a command of the gateway in a process without the environment of the tests."""

    def run(*arguments, **environment):
        inherited = {
            name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ
        }
        return commands_without_settings().run(
            *map(str, arguments),
            environment={**inherited, "BRIDGE_DATA_DIR": str(tmp_path / "data"), **environment},
        )

    return run
