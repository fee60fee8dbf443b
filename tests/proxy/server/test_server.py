"""``serve`` as a process: its output, exit codes and files."""

import contextlib
import os
import re
import secrets
import signal
import socket
import sqlite3
import stat
import subprocess
import sys

import pytest

from tests.fakes.forked_python import REPOSITORY
from tests.fakes.servers.prepared import copy_ledger
from tests.proxy.config.conftest import BRIDGE_TOML, SECRET
from tests.waiting import until

PASSWORD = "correct horse battery"
SECRETS = re.compile(r"sk-br-[A-Za-z0-9_-]{20,}|password (?!\()\S+")


@contextlib.contextmanager
def serve(folder):
    """Yield a function that starts ``serve`` on a free port and waits until it prints its URL.

    It returns the process and the path of its output. ``folder`` contains the data directory.
    """
    running = []

    def start(*arguments, **environment):
        inherited = {
            name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ
        }
        log = folder / f"log-{len(running)}"
        with log.open("wb") as out:
            process = subprocess.Popen(  # noqa: S603 - our own command line
                [sys.executable, "manage.py", "serve", "--port", "0", *map(str, arguments)],
                cwd=REPOSITORY,
                env={
                    **inherited,
                    "BRIDGE_DATA_DIR": str(folder / "data"),
                    "PYTHONUNBUFFERED": "1",
                    **environment,
                },
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        running.append(process)
        until(
            lambda: "listens on" in log.read_text() or process.poll() is not None,
            log.read_text,
            within_s=120,
        )
        return process, log

    try:
        yield start
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
            process.wait(60)


@pytest.fixture
def serving(tmp_path):
    with serve(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A gateway that tests only ask: its data directory and its output."""
    folder = tmp_path_factory.mktemp("running")
    copy_ledger(folder / "data", with_admin=False)
    with serve(folder) as start:
        process, log = start(BRIDGE_ADMIN_PASSWORD=PASSWORD, BRIDGE_HEAD_TIMEOUT_S="1")
        yield folder / "data", log
        assert stop(process) == 0


@pytest.fixture(scope="module")
def configured(tmp_path_factory):
    """A gateway with a file and with debug mode, which is unsafe: its process, output and file."""
    folder = tmp_path_factory.mktemp("configured")
    copy_ledger(folder / "data")
    (folder / "bridge.toml").write_text(BRIDGE_TOML)
    environment = {"BRIDGE_KEY_CI": SECRET, "OPENAI_API_KEY": "sk-upstream"}
    unsafe = {"BRIDGE_DEBUG": "1", "BRIDGE_INSECURE_OK": "1"}
    with serve(folder) as start:
        process, log = start("--config", folder / "bridge.toml", **environment, **unsafe)
        yield process, log, folder / "bridge.toml"
        assert stop(process) == 0


def stop(process):
    process.send_signal(signal.SIGTERM)
    return process.wait(90)


def port_of(log):
    return int(re.search(r"listens on http://127\.0\.0\.1:(\d+)", log.read_text())[1])


def files_of(folder):
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and not path.suffix
    }


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


def test_all_files_of_the_data_directory_are_private(running):
    data, _ = running

    modes, folders = {}, {}
    for path in (data, *data.iterdir()):
        with contextlib.suppress(FileNotFoundError):  # a running gateway deletes temporary files
            found = folders if path.is_dir() else modes
            found[path.name] = stat.S_IMODE(path.stat().st_mode)

    assert {"secret_key", "ledger.sqlite3", "serve.lock"} <= set(modes)
    assert {"data", "journal-0"} <= set(folders)
    assert set(folders.values()) == {0o700}
    assert set(modes.values()) == {0o600}


def test_a_second_gateway_on_the_same_directory_is_rejected(running, manage):
    data, _ = running

    run = manage("serve", "--port", "0", BRIDGE_DATA_DIR=str(data))

    assert run.returncode == 2
    assert "is in use by another gateway" in run.stderr
    assert SECRETS.findall(run.stdout) == []


def test_the_admin_password_of_the_environment_is_not_printed(running):
    _, log = running

    assert "(from BRIDGE_ADMIN_PASSWORD)" in log.read_text()
    assert "horse" not in log.read_text()


def test_a_port_in_use_is_one_error_line_and_creates_nothing(manage, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        run = manage("serve", "--port", taken.getsockname()[1])

    assert run.returncode == 2
    assert "cannot listen on 127.0.0.1" in run.stderr
    assert run.stdout == ""
    assert not (tmp_path / "data" / "secret_key").exists()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_an_unwritable_data_directory_is_rejected(manage, tmp_path):
    (tmp_path / "data").mkdir(mode=0o500)

    run = manage("serve", "--port", "0")

    assert (run.returncode, "Permission denied" in run.stderr) == (2, True)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        (".", 0o777),
        (".", 0o1777),
        (".", 0o730),
        ("secret_key", 0o666),
        ("ledger.sqlite3", 0o620),
        ("journal-0", 0o770),
        ("journal-0/00000001.log", 0o602),
    ],
)
def test_a_data_directory_that_others_may_write_to_is_rejected(manage, tmp_path, name, mode):
    data = tmp_path / "data"
    (data / "journal-0").mkdir(mode=0o700, parents=True)
    data.chmod(0o700)
    for file in ("secret_key", "ledger.sqlite3", "journal-0/00000001.log"):
        (data / file).write_text(secrets.token_urlsafe(48))
        (data / file).chmod(0o600)
    open_path = (data / name).resolve()
    open_path.chmod(mode)

    run = manage("serve", "--port", "0")

    assert run.returncode == 2
    assert f"{open_path}: mode {mode:04o} lets other users change it" in run.stderr
    assert f"chmod -R go-w {data}" in run.stderr
    assert run.stderr.count("\n") == 1
    assert stat.S_IMODE(open_path.stat().st_mode) == mode


def test_a_data_directory_that_others_may_read_becomes_private(serving, tmp_path):
    copy_ledger(tmp_path / "data", with_admin=False)
    (tmp_path / "data").chmod(0o755)
    (tmp_path / "data" / "ledger.sqlite3").chmod(0o644)

    process, log = serving()

    assert stop(process) == 0
    assert f"{tmp_path / 'data'}: other users could read it" in log.read_text()
    for path in (tmp_path / "data", tmp_path / "data" / "ledger.sqlite3"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize("what", ["setting", "configuration", "upstream key"])
def test_a_file_with_secrets_that_everyone_may_write_to_is_rejected(manage, tmp_path, what):
    key = tmp_path / "key"
    key.write_text("k" * 64)
    arguments, environment = [], {}
    if what == "setting":
        environment["BRIDGE_SECRET_KEY_FILE"] = str(key)
    else:
        text = BRIDGE_TOML.replace('{ env = "OPENAI_API_KEY" }', f'{{ file = "{key}" }}')
        path = tmp_path / "bridge.toml"
        path.write_text(text)
        arguments = ["--config", path]
        environment["BRIDGE_KEY_CI"] = SECRET
    open_path = path if what == "configuration" else key
    open_path.chmod(0o666)

    run = manage("serve", "--port", "0", *arguments, **environment)

    assert run.returncode == 2
    assert "mode 0666 lets other users change it" in run.stderr
    assert f"chmod o-w {open_path}" in run.stderr


def test_a_file_instead_of_the_data_directory_is_rejected(manage, tmp_path):
    (tmp_path / "data").write_text("")

    run = manage("serve", "--port", "0")

    assert run.returncode == 2
    assert run.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("environment", "arguments", "message"),
    [
        ({"BRIDGE_PING_INTERVAL_S": "soon"}, (), "BRIDGE_PING_INTERVAL_S is 'soon'"),
        ({"BRIDGE_SECRET_KEY_FILE": "/nowhere/key"}, (), "BRIDGE_SECRET_KEY_FILE"),
        ({}, ("--workers", "0"), "--workers"),
        ({}, ("--config", "/nowhere/bridge.toml"), "/nowhere/bridge.toml"),
    ],
)
def test_an_invalid_setting_exits_with_2_and_creates_nothing(
    manage, tmp_path, environment, arguments, message
):
    run = manage("serve", "--port", "0", *arguments, **environment)

    assert run.returncode == 2
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    assert SECRETS.findall(run.stdout) == []
    assert list(tmp_path.iterdir()) == []


def test_an_unsafe_setting_starts_with_insecure_ok(configured):
    _, log, _ = configured

    assert "listens on" in log.read_text()


def test_a_dry_run_prints_the_plan_and_missing_secrets_and_writes_nothing(manage, tmp_path, toml):
    file = tmp_path / "bridge.toml"
    file.write_text(toml)
    missing = "upstreams[0].api_key: environment variable OPENAI_API_KEY is missing or empty"

    planned = manage("applyconfig", file, "--dry-run", BRIDGE_KEY_CI=SECRET)
    left = sorted(tmp_path.iterdir())
    done = manage("applyconfig", file, BRIDGE_KEY_CI=SECRET)

    assert (planned.returncode, left) == (0, [file]), planned.stderr
    assert "nothing was changed (dry run)" in planned.stdout
    assert planned.stdout.splitlines()[:-1] == done.stdout.splitlines()[:-1]
    assert f"warning: {missing} here" in planned.stderr
    assert f"warning: {missing} here" in done.stderr


def test_a_dry_run_does_not_migrate(manage, tmp_path, toml):
    copy_ledger(tmp_path / "data")
    (tmp_path / "data" / "secret_key").write_text(secrets.token_urlsafe(48))
    (tmp_path / "bridge.toml").write_text(toml)
    with contextlib.closing(sqlite3.connect(tmp_path / "data" / "ledger.sqlite3")) as database:
        database.execute("DELETE FROM django_migrations WHERE app = 'proxy'")
        database.commit()

        run = manage("applyconfig", tmp_path / "bridge.toml", "--dry-run", BRIDGE_KEY_CI=SECRET)

        applied = database.execute("SELECT 1 FROM django_migrations WHERE app = 'proxy'").fetchall()
    assert run.returncode == 2
    assert "run manage.py migrate" in run.stderr
    assert "a dry run does not migrate" in run.stderr
    assert applied == []


def test_a_configured_gateway_starts_without_sandbox_and_default_key(configured):
    _, log, _ = configured
    output = log.read_text()

    assert "+ upstream openai" in output
    assert "SANDBOX" not in output
    assert "Gateway key" not in output
    assert SECRET not in output


def test_a_client_that_never_completes_its_head_gets_a_408(running):
    _, log = running
    with contextlib.closing(socket.create_connection(("127.0.0.1", port_of(log)), 90)) as client:
        client.sendall(b"POST /v1/messages HTTP/1.1\r\nx-slow: ")
        response = b"".join(iter(lambda: client.recv(4096), b""))

    assert response.startswith(b"HTTP/1.1 408")
    assert b'"timeout_error"' in response


def test_k07_sighup_applies_the_file_again_and_an_error_changes_nothing(configured):
    process, log, file = configured

    file.write_text(BRIDGE_TOML + '[[teams]]\nnam = "ben"\n')
    process.send_signal(signal.SIGHUP)
    wait_for(log, "the old configuration stays active: .*did you mean 'name'")
    file.write_text(BRIDGE_TOML + '[[teams]]\nname = "ben"\n')
    process.send_signal(signal.SIGHUP)
    wait_for(log, r"\+ team ben")


def wait_for(log, pattern):
    until(lambda: re.search(pattern, log.read_text()), log.read_text)


def test_a_command_before_the_first_start_prints_one_error(manage, tmp_path):
    (tmp_path / "data").mkdir()

    run = manage("exportconfig")

    assert run.returncode == 2
    assert "database error" in run.stderr
    assert "Traceback" not in run.stderr


def test_an_invalid_secret_key_file_is_rejected(manage, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "secret_key").write_bytes(b"\xff\xfe")

    run = manage("serve", "--port", "0")

    assert run.returncode == 2
    assert "secret_key cannot be read: not a secret key" in run.stderr


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_systemd_is_told_that_the_gateway_is_ready_runs_and_stops(serving, tmp_path, workers):
    """sd_notify(3): one datagram for each state. The watchdog wants one at least every second."""
    copy_ledger(tmp_path / "data")
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(30)
        environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"}
        process, log = serving("--workers", str(workers), **environment)
        states = [systemd.recv(100) for _ in range(3)]
        response = health_of(log)
        assert stop(process) == 0
        systemd.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                states.append(systemd.recv(100))

    assert response.startswith(b"HTTP/1.1 200")
    assert b"READY=1" in states[:2]
    assert states.count(b"WATCHDOG=1") >= 2
    assert states[-1] == b"STOPPING=1"


def health_of(log):
    with contextlib.closing(socket.create_connection(("127.0.0.1", port_of(log)), 90)) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        return client.recv(64)
