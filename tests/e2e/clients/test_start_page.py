"""Run the commands of docs/start.md in order, in an empty folder and environment.

Three things differ from the page: the system chooses the port, the provider is a local sandbox, and
``…`` is its key. tests/repo/supply/test_wheels.py tests the installation.
"""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Self

import pytest

from proxy.bootstrap.sandbox.server import free_socket, running
from tests.fakes.servers.gateway import REPOSITORY, Gateway
from tests.waiting import until

PAGE = (REPOSITORY / "docs/start.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SERVES = [text.strip() for _, text in BLOCKS if "manage.py serve" in text]
FIRST, WITH_KEY, WITH_CONFIG = (text.rpartition("&& ")[2] for text in SERVES)
(CONFIG,) = (text for language, text in BLOCKS if language == "toml")
(APPLY,) = (text for _, text in BLOCKS if "applyconfig bridge.toml" in text)
(SEND,) = (text for _, text in BLOCKS if '/v1/messages -H "x-api-key: $BRIDGE_KEY_CI"' in text)
PROVIDER_KEY = "sk-of-the-provider"
MESSAGE = {"model": "claude-x", "max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}]}


@dataclass
class PageGateway(Gateway):
    """A gateway that a command of the page starts."""

    line: str = FIRST
    key: str = ""
    migrated: bool = False

    def command_line(self) -> list[str]:
        line = self.line.replace("…", PROVIDER_KEY)
        return ["bash", "-c", f"exec env {line} --port {self.port}"]

    def environment_variables(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder), **self.environment}

    def message(self, key: str) -> tuple[int, str]:
        reply = self.request(
            "POST", "/v1/messages", json.dumps(MESSAGE).encode(), {"x-api-key": key}
        )
        return reply.status, reply.body.decode()


class Shell:
    """The second terminal of the page; its environment is shared by all blocks."""

    def __init__(self, gateway: PageGateway) -> None:
        self._gateway = gateway
        self._bash = subprocess.Popen(
            ["bash"],  # noqa: S607 - bash of the system
            cwd=gateway.cwd,
            env=gateway.environment_variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, block: str, status: int = 0) -> str:
        """Run a block and return its output; each command must end with this status."""
        text = block.replace("http://127.0.0.1:8000", self._gateway.url)
        printed = ""
        for line in text.strip().splitlines():
            self._bash.stdin.write(f"{line}\nended=$?; echo; echo status $ended\n")
            self._bash.stdin.flush()
            while not (
                end := re.fullmatch(r"status (\d+)\n", output_line := self._bash.stdout.readline())
            ):
                assert output_line, printed
                printed += output_line
            assert int(end[1]) == status, f"{line}\n{printed}"
        return printed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bash.stdin.close()
        self._bash.wait(60)
        self._bash.stdout.close()


@pytest.fixture(scope="module")
def provider():
    with running(free_socket(0)) as base_url:
        yield base_url


@pytest.fixture
def folder(tmp_path, provider):
    """A minimal checkout for the page, with the page's bridge.toml."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "manage.py").symlink_to(REPOSITORY / "manage.py")
    config = CONFIG.replace("https://api.openai.com/v1", provider)
    assert config != CONFIG
    (tmp_path / "bridge.toml").write_text(config, encoding="utf-8")
    return tmp_path


def key_in(printed: str) -> str:
    (key, *_) = re.findall(r"sk-br-[\w-]{20,}", printed)
    return key


@pytest.mark.slow  # eight processes; the fast lane runs the commands without a provider's key, below
def test_commands_of_the_page_work_in_order(folder, provider):
    gateway = PageGateway(folder, cwd=folder)
    with gateway, Shell(gateway) as shell:
        first = key_in(gateway.log)
        assert (folder / "data/ledger.sqlite3").exists()
        (curl,) = re.findall(r"^\s*(curl .*)$", gateway.log, re.MULTILINE)
        assert "message_stop" in shell.run(f"{curl} --silent --show-error")

    gateway.line, gateway.environment = WITH_KEY, {"OPENAI_BASE_URL": provider}
    with gateway, Shell(gateway) as shell:
        assert "claude-* is routed to openai" in gateway.log
        assert gateway.message(first)[0] == 200

        *applied, list_models = APPLY.strip().splitlines()
        printed = shell.run("\n".join(applied))
        assert "+ key platform/ci" in printed
        until(lambda: "claude-" in shell.run(list_models), "the new key lists its models")
        assert "No changes." in shell.run(applied[-1])
        ci = shell.run("echo $BRIDGE_KEY_CI").split()[0]
        assert '"stop_reason":"end_turn"' in shell.run(SEND)

        (dashboards,) = re.findall(r"`manage\.py (createkey .*?)`", PAGE)
        assert "sk-br-" in shell.run(f".venv/bin/python manage.py {dashboards}")
        shell.run(f"export OPENAI_API_KEY={PROVIDER_KEY}")
        report = shell.run(".venv/bin/python manage.py doctor")
        assert f"gateway: listens on {gateway.url}, ok." in report
        assert f"ANTHROPIC_BASE_URL={gateway.url} " in report
        assert ":8000" not in report

    gateway.line, gateway.environment = WITH_CONFIG, {"BRIDGE_KEY_CI": ci}
    with gateway:
        assert gateway.message(ci)[0] == 200
        assert gateway.message(first)[0] == 200


def test_new_environment_variable_needs_a_restart(folder):
    gateway = PageGateway(folder, cwd=folder)
    with gateway, Shell(gateway) as shell:
        first = key_in(gateway.log)
        assert (folder / "data/ledger.sqlite3").exists()
        *prepared, dry_run, apply, list_models = APPLY.strip().splitlines()
        shell.run("\n".join(prepared))
        assert "at least 32 characters" in PAGE
        short = shell.run(f"BRIDGE_KEY_CI={'x' * 31} {dry_run}", status=2)
        assert "keys[0].secret: has fewer than 32 characters" in short
        assert "+ key platform/ci" in shell.run(apply)
        until(lambda: "claude-" in shell.run(list_models), "the new key lists its models")
        ci = shell.run("echo $BRIDGE_KEY_CI").split()[0]
        assert gateway.message(first)[0] == gateway.message(ci)[0] == 500
        assert "upstream openai cannot be used" in gateway.request("GET", "/readyz").body.decode()
        assert "OPENAI_API_KEY" in shell.run(".venv/bin/python manage.py doctor", status=1)

    gateway.line, gateway.environment = WITH_CONFIG, {"BRIDGE_KEY_CI": ci}
    with gateway, Shell(gateway) as shell:
        assert '"stop_reason":"end_turn"' in shell.run(SEND)
        assert gateway.message(first)[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("secret", "expected_text"),
    [(None, "keys[0].secret: environment variable BRIDGE_KEY_CI is missing or empty"),
     ("x" * 32, "7 changes")],
)  # fmt: skip
def test_dry_run_of_the_page_s_file_names_a_missing_key(folder, secret, expected_text):
    environment = {"BRIDGE_KEY_CI": secret} if secret else {}
    gateway = PageGateway(folder, cwd=folder, environment=environment)
    with Shell(gateway) as shell:
        printed = shell.run(".venv/bin/python manage.py applyconfig bridge.toml --dry-run || true")

    assert expected_text in printed


def test_doctor_ignores_the_address_of_a_killed_gateway(tmp_path):
    gateway = Gateway(tmp_path)
    with gateway:
        running_report = gateway.manage("doctor", "--no-stream")
        elsewhere = gateway.manage("doctor", "--no-stream", "--url", "https://bridge.example.com")
        os.killpg(gateway.process.pid, signal.SIGKILL)
        gateway.process.wait(60)

    after = gateway.manage("doctor", "--no-stream")

    assert f"gateway: listens on {gateway.url}, ok." in running_report
    assert f"ANTHROPIC_BASE_URL={gateway.url} " in running_report
    assert f"gateway: listens on {gateway.url}, ok." in elsewhere
    assert "ANTHROPIC_BASE_URL=https://bridge.example.com " in elsewhere
    assert "gateway: none runs on" in after
    assert gateway.url not in after
