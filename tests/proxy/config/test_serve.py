"""``serve`` as an operator meets it: a process, its words, its exit code, its files."""

import contextlib
import os
import re
import secrets
import signal
import socket
import stat
import subprocess
import sys
import time

import pytest

from .conftest import REPOSITORY, SECRET

SECRETS = re.compile(r"sk-br-[A-Za-z0-9_-]{20,}|password (?!\()\S+")


@pytest.fixture
def serving(tmp_path):
    """Start ``serve`` on a free port and wait until it says that it listens."""
    running = []

    def start(*arguments, folder="data", **environment):
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        log = tmp_path / f"log-{len(running)}"
        with log.open("wb") as out:
            process = subprocess.Popen(  # noqa: S603 - our own command line
                [sys.executable, "manage.py", "serve", "--port", "0", *map(str, arguments)],
                cwd=REPOSITORY,
                env={
                    **kept,
                    "BRIDGE_DATA_DIR": str(tmp_path / folder),
                    "PYTHONUNBUFFERED": "1",
                    **environment,
                },
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        running.append(process)
        deadline = time.monotonic() + 120
        while "listens on" not in log.read_text() and process.poll() is None:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        return process, log

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.wait(60)


def stop(process):
    process.send_signal(signal.SIGTERM)
    return process.wait(90)


def port_of(log):
    return int(re.search(r"listens on http://127\.0\.0\.1:(\d+)", log.read_text())[1])


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ""}


def test_the_second_start_prints_no_secret_and_changes_none(serving, tmp_path):
    process, log = serving()
    assert stop(process) == 0
    first, files = log.read_text(), files_of(tmp_path / "data")

    process, log = serving()
    assert stop(process) == 0

    assert len(SECRETS.findall(first)) >= 4
    assert "Traceback" not in first
    assert SECRETS.findall(log.read_text()) == []
    assert "SANDBOX" in log.read_text()
    assert files_of(tmp_path / "data") == files


def test_everything_it_makes_is_private(serving, tmp_path):
    process, _ = serving()

    modes = {}
    for path in (tmp_path / "data", *(tmp_path / "data").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # it works with them meanwhile
            modes[path.name] = stat.S_IMODE(path.stat().st_mode)
    stop(process)

    assert {"data", "secret_key", "ledger.sqlite3", "serve.lock"} <= set(modes)
    assert modes.pop("data") == 0o700
    assert set(modes.values()) == {0o600}


def test_a_second_gateway_on_the_same_directory_is_told_that_it_is_in_use(serving, manage):
    process, _ = serving()

    run = manage("serve", "--port", "0")
    stop(process)

    assert run.returncode == 2
    assert "is in use by another gateway" in run.stderr
    assert SECRETS.findall(run.stdout) == []


def test_a_taken_port_is_one_clear_line_and_makes_nothing(manage, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        run = manage("serve", "--port", taken.getsockname()[1])

    assert run.returncode == 2
    assert "cannot listen on 127.0.0.1" in run.stderr
    assert run.stdout == ""
    assert not (tmp_path / "data" / "secret_key").exists()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_directory_that_is_not_ours_is_refused(manage, tmp_path):
    (tmp_path / "data").mkdir(mode=0o500)

    run = manage("serve", "--port", "0")

    assert (run.returncode, "Permission denied" in run.stderr) == (2, True)


def test_a_file_where_the_directory_should_be_is_refused(manage, tmp_path):
    (tmp_path / "data").write_text("")

    run = manage("serve", "--port", "0")

    assert run.returncode == 2
    assert run.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("environment", "arguments", "complaint"),
    [
        (
            {"BRIDGE_PNG_INTERVAL_S": "3"},
            (),
            "unknown setting BRIDGE_PNG_INTERVAL_S; did you mean 'BRIDGE_PING_INTERVAL_S'?",
        ),
        ({"BRIDGE_PING_INTERVAL_S": "soon"}, (), "BRIDGE_PING_INTERVAL_S is 'soon'"),
        ({"BRIDGE_DEBUG": "1"}, (), "proxy.E010"),
        ({"BRIDGE_ALLOWED_HOSTS": "*"}, ("--host", "::"), "proxy.E011"),
        ({"BRIDGE_SECRET_KEY_FILE": "/nowhere/key"}, (), "BRIDGE_SECRET_KEY_FILE"),
        ({}, ("--workers", "0"), "--workers"),
        ({}, ("--config", "/nowhere/bridge.toml"), "/nowhere/bridge.toml"),
    ],
)
def test_a_wrong_setting_ends_with_2_names_itself_and_makes_nothing(
    manage, tmp_path, environment, arguments, complaint
):
    run = manage("serve", "--port", "0", *arguments, **environment)

    assert run.returncode == 2
    assert complaint in run.stderr
    assert "Traceback" not in run.stderr
    assert SECRETS.findall(run.stdout) == []
    assert list(tmp_path.iterdir()) == []


def test_an_unsafe_setting_starts_when_the_operator_insists(serving):
    process, log = serving(BRIDGE_DEBUG="1", BRIDGE_INSECURE_OK="1")

    assert "listens on" in log.read_text()
    assert stop(process) == 0


def test_a_dry_run_tells_the_plan_and_what_is_missing_and_writes_nothing(manage, tmp_path, toml):
    file = tmp_path / "bridge.toml"
    file.write_text(toml)
    lacking = "upstreams[0].api_key: environment variable OPENAI_API_KEY is missing or empty"

    told = manage("applyconfig", file, "--dry-run", BRIDGE_KEY_CI=SECRET)
    left = sorted(tmp_path.iterdir())
    done = manage("applyconfig", file, BRIDGE_KEY_CI=SECRET)

    assert (told.returncode, left) == (0, [file]), told.stderr
    assert "nothing was changed (dry run)" in told.stdout
    assert told.stdout.splitlines()[:-1] == done.stdout.splitlines()[:-1]
    assert f"warning: {lacking} here" in told.stderr
    assert f"warning: {lacking} here" in done.stderr


def test_a_dry_run_does_not_migrate(manage, tmp_path, toml):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "secret_key").write_text(secrets.token_urlsafe(48))
    (tmp_path / "bridge.toml").write_text(toml)
    assert manage("migrate", "proxy", "0001").returncode == 0

    run = manage("applyconfig", tmp_path / "bridge.toml", "--dry-run", BRIDGE_KEY_CI=SECRET)

    assert run.returncode == 2
    assert "run manage.py migrate" in run.stderr
    assert "a dry run does not migrate" in run.stderr
    assert "[ ] 0002" in manage("showmigrations", "proxy").stdout


def test_a_used_upstream_without_its_key_refuses_the_start(manage, tmp_path, toml):
    (tmp_path / "bridge.toml").write_text(toml)

    run = manage("serve", "--port", "0", "--config", tmp_path / "bridge.toml", BRIDGE_KEY_CI=SECRET)

    assert run.returncode == 2
    assert "upstream 'openai': environment variable OPENAI_API_KEY is missing" in run.stderr
    assert SECRETS.findall(run.stdout) == []


def test_a_configured_gateway_starts_without_sandbox_and_default_key(serving, tmp_path, toml):
    (tmp_path / "bridge.toml").write_text(toml)

    process, log = serving(
        "--config", tmp_path / "bridge.toml", BRIDGE_KEY_CI=SECRET, OPENAI_API_KEY="sk-upstream"
    )
    stop(process)

    told = log.read_text()
    assert "+ upstream openai" in told
    assert "SANDBOX" not in told
    assert "Gateway key" not in told
    assert SECRET not in told


def test_the_admin_password_of_the_environment_is_not_printed(serving):
    process, log = serving(BRIDGE_ADMIN_PASSWORD="correct horse battery")
    stop(process)

    assert "(from BRIDGE_ADMIN_PASSWORD)" in log.read_text()
    assert "horse" not in log.read_text()


def test_several_workers_start_and_stop_together(serving):
    process, log = serving("--workers", "2")
    with contextlib.closing(socket.create_connection(("127.0.0.1", port_of(log)), 90)) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        answer = client.recv(64)

    assert answer.startswith(b"HTTP/1.1 200")
    assert stop(process) == 0


def test_a_client_that_never_finishes_its_head_is_let_go(serving):
    process, log = serving(BRIDGE_HEAD_TIMEOUT_S="3")
    with contextlib.closing(socket.create_connection(("127.0.0.1", port_of(log)), 90)) as client:
        client.sendall(b"POST /v1/messages HTTP/1.1\r\nx-slow: ")
        said = b"".join(iter(lambda: client.recv(4096), b""))

    assert said.startswith(b"HTTP/1.1 408")
    assert b'"timeout_error"' in said
    assert stop(process) == 0


def test_k07_a_hangup_applies_the_file_again_and_a_mistake_in_it_changes_nothing(serving, tmp_path):
    file = tmp_path / "bridge.toml"
    file.write_text('[[teams]]\nname = "ada"\n')
    process, log = serving("--config", file)

    file.write_text('[[teams]]\nnam = "ben"\n')
    process.send_signal(signal.SIGHUP)
    wait_for(log, "the old configuration stays: .*did you mean 'name'")
    file.write_text('[[teams]]\nname = "ada"\n[[teams]]\nname = "ben"\n')
    process.send_signal(signal.SIGHUP)
    wait_for(log, r"\+ team ben")

    assert stop(process) == 0


def wait_for(log, words):
    deadline = time.monotonic() + 90
    while not re.search(words, log.read_text()):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def test_a_command_before_any_start_is_one_clear_line(manage, tmp_path):
    (tmp_path / "data").mkdir()

    run = manage("exportconfig")

    assert run.returncode == 2
    assert "the database says" in run.stderr
    assert "Traceback" not in run.stderr


def test_a_secret_key_that_is_none_is_refused(manage, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "secret_key").write_bytes(b"\xff\xfe")

    run = manage("serve", "--port", "0")

    assert run.returncode == 2
    assert "secret_key cannot be read: not a secret key" in run.stderr


def test_createkey_prints_a_key_once_and_only_for_a_known_team(manage):
    assert manage("createkey", "--team", "default", "--name", "laptop").returncode == 2

    serve_once = manage("applyconfig", "/dev/stdin")  # an empty file: no team either
    assert serve_once.returncode == 0
    unknown = manage("createkey", "--team", "default", "--name", "laptop")

    assert unknown.returncode == 2
    assert "no team 'default'" in unknown.stderr
    assert "Traceback" not in unknown.stderr


def test_createkey_takes_no_name_that_bridge_toml_could_not_write(manage, tmp_path):
    file = tmp_path / "bridge.toml"
    file.write_text('[[teams]]\nname = "ada"\n')
    assert manage("applyconfig", file).returncode == 0

    spaced = manage("createkey", "--team", "ada", "--name", "my laptop")

    assert spaced.returncode == 2
    assert "--name is 'my laptop'; letters, digits, - and _ are expected" in spaced.stderr


def test_createkey_makes_the_secret_of_a_key_that_the_file_names(manage, tmp_path):
    file = tmp_path / "bridge.toml"
    file.write_text('[[teams]]\nname = "ada"\n[[keys]]\nteam = "ada"\nname = "ben"\n')
    assert manage("applyconfig", file).returncode == 0

    made = manage("createkey", "--team", "ada", "--name", "ben", "--json")
    again = manage("createkey", "--team", "ada", "--name", "ben")

    assert re.search(r'"key": "sk-br-[A-Za-z0-9_-]{43}"', made.stdout)
    assert again.returncode == 2
    assert "exists" in again.stderr
    assert manage("applyconfig", file).stdout == "No changes.\n"
