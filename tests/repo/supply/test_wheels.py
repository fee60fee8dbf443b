"""Check that the installed wheel works without this checkout, on every Python that is found.

The suite tests the interpreter that runs it. This module tests the others, each in a new
environment. The installed gateway serves: in the fast lane on the suite's Python, with the packages
of the suite's environment; in the slow lane on all others, with packages of its own. There the tests
that depend most on the version also pass on all (translator, ledger, requests through the gateway).
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.lanes import repeat

REPOSITORY = Path(__file__).parents[3]
PACKAGES = ("translator", "proxy", "bridge_project")
VERSIONS = ("3.11", "3.12", "3.13")
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
ISOLATED = {
    name: value
    for name, value in os.environ.items()
    if name in {"PATH", "HOME", "LANG", "TMPDIR"} or name.startswith(("PIP_", "UV_", "SSL_"))
}


def interpreter(version: str) -> str | None:
    """Return the path of an interpreter from PATH or pyenv; skip shims that do not run."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = sorted(pyenv.glob(f"{version}.*/bin/python{version}"))
    for place in [shutil.which(f"python{version}"), *map(str, reversed(installed))]:
        if place is not None:
            output = run([place, "-c", "print('works')"], check=False)
            if output.stdout == "works\n":
                return place
    return None


def run(command: list, *, check: bool = True, **more) -> subprocess.CompletedProcess:
    done = subprocess.run(  # noqa: S603 - our own command lines
        command, capture_output=True, text=True, check=False, env=ISOLATED, timeout=280, **more
    )
    assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done


# Tests that start database servers, browsers or other gateways do not depend on the version.
SUITE = (
    "tests/translator",
    "--ignore=tests/translator/all_dialects/test_corpus.py",
    *(f"tests/proxy/ledger/journal/test_{name}.py" for name in ("journal", "reader", "segments")),
    "tests/proxy/ledger/posting/test_ledger_writer.py",
    "tests/proxy/ledger/transcripts/test_storage.py",
    "tests/proxy/gateway/endpoints/test_messages.py",
    "tests/proxy/gateway/endpoints/test_translation.py",
    "tests/proxy/metrics",
    "tests/proxy/encryption/test_upstream_secrets.py",
)
NEEDED = {"pytest", "pytest-django", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis", "coverage",
          "anthropic", "openai", "python-ulid"}  # fmt: skip


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    done = subprocess.run(  # noqa: S603 - our own command line
        [REPOSITORY / "deploy/wheels", folder], capture_output=True, text=True, check=False,
        env={**ISOLATED, "PYTHON": sys.executable}, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def wheel(folder: Path, name: str) -> Path:
    [found] = folder.glob(f"{name}-[0-9]*.whl")
    return found


def environment(python: str, folder: Path, *packages: Path, options: tuple[str, ...] = ()) -> Path:
    """Create a virtual environment with these wheels; return its ``bin`` folder."""
    run([python, "-m", "venv", "--without-pip", folder])
    install(folder / "bin/python", *packages, options=options)
    return folder / "bin"


def install(target: Path, *packages: str | Path, options: tuple[str, ...] = ()) -> None:
    """Install with uv, which takes seconds, or else with pip."""
    uv = shutil.which("uv", path=Path(sys.executable).parent)
    if (
        uv is None
        or run(
            [uv, "pip", "install", "--quiet", "--python", target, *options, *packages], check=False
        ).returncode
    ):
        pip = [sys.executable, "-m", "pip", "--python", target, "install", "--quiet"]
        run([*pip, "--disable-pip-version-check", "--no-compile", *options, *packages])


@pytest.mark.timeout(400)
def test_a_wheel_contains_every_file_of_its_packages(wheels):
    if not (REPOSITORY / ".git").exists() or not shutil.which("git"):
        pytest.skip("not a git checkout: nothing is tracked here")
    listed = run(["git", "-C", str(REPOSITORY), "ls-files", *PACKAGES]).stdout.split()

    contained = set(zipfile.ZipFile(wheel(wheels, "messages_bridge")).namelist())

    assert len(listed) > 200
    assert [name for name in listed if (REPOSITORY / name).exists() and name not in contained] == []


@pytest.mark.timeout(400)
def test_translator_alone_needs_nothing_else(wheels, tmp_path):
    made = wheel(wheels, "messages_bridge_translator")
    programs = environment(sys.executable, tmp_path / "venv", made, options=("--no-index",))
    page = (REPOSITORY / "deploy/translator/README.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(
        example + "\nimport importlib.metadata as m, json, translator\n"
        "print(json.dumps([sorted(d.name for d in m.distributions()), translator.__file__]))\n"
    )

    output = run([programs / "python", "-I", script], cwd=tmp_path).stdout

    names, place = json.loads(output)
    assert names == ["messages-bridge-translator"]
    assert place.startswith(str(tmp_path))
    assert {name.split("/")[0] for name in zipfile.ZipFile(made).namelist()} == {
        "translator",
        made.name.removesuffix("-py3-none-any.whl") + ".dist-info",
    }


@pytest.fixture(scope="module")
def programs(request, wheels, tmp_path_factory) -> Path:
    """Return the ``bin`` folder of an environment of this version with the project's wheel.

    The suite's own Python also reads the installed packages that the project needs from the suite's
    environment, but not the checkout.
    """
    python = interpreter(request.param)
    if python is None:
        pytest.skip(f"NO python{request.param} HERE: this version is NOT TESTED")
    folder = tmp_path_factory.mktemp(f"python{request.param}") / "venv"
    own = wheel(wheels, "messages_bridge")
    if request.param != HERE:
        return environment(python, folder, own)
    bin_folder = environment(sys.executable, folder, own, options=("--no-deps",))
    packages = folder / f"lib/python{HERE}/site-packages"
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib"))
    return bin_folder


@pytest.fixture
def served(programs, tmp_path) -> Iterator[tuple[str, str, Path]]:
    """Start the installed gateway without settings; yield its URL, key and folder."""
    log = tmp_path / "serve.log"
    with log.open("wb") as out:
        gateway = subprocess.Popen(  # noqa: S603 - our own command line
            [programs / "messages-bridge", "serve", "--port", "0"],
            cwd=tmp_path, env=ISOLATED, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (found := re.search(r"listens on (http://\S+)", log.read_text())):
        assert gateway.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    key = re.search(r"sk-br-[\w-]+", log.read_text())
    assert key
    yield found[1], key[0], tmp_path
    gateway.terminate()
    assert gateway.wait(30) == 0, log.read_text()
    assert "Traceback" not in log.read_text()


ELSEWHERE = [version for version in VERSIONS if version != HERE]


@pytest.mark.repeated
@pytest.mark.timeout(400)
@pytest.mark.parametrize("programs", repeat(fast=[HERE], slow=ELSEWHERE), indirect=True)
def test_the_installed_gateway_serves_its_first_answer(served):
    url, key, folder = served
    body = {
        "model": "claude-x", "max_tokens": 50, "stream": True,
        "messages": [{"role": "user", "content": "Hello"}],
    }  # fmt: skip
    request = urllib.request.Request(  # noqa: S310 - loopback
        f"{url}/v1/messages", json.dumps(body).encode(),
        {"x-api-key": key, "content-type": "application/json"},
    )  # fmt: skip

    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - loopback
        stream = answer.read().decode()
    with urllib.request.urlopen(f"{url}/admin/login/", timeout=30) as page:  # noqa: S310 - loopback
        html = page.read().decode()

    assert "event: message_stop" in stream
    assert (folder / "data/ledger.sqlite3").exists()
    for place in re.findall(r'(?:href|src)="(/static/[^"]+)"', html)[:4]:
        with urllib.request.urlopen(url + place, timeout=30) as file:  # noqa: S310 - loopback
            assert file.status == 200


@pytest.mark.slow
@pytest.mark.timeout(1700)
@pytest.mark.parametrize("programs", ELSEWHERE, indirect=True)
def test_the_suite_s_core_passes_on_other_pythons(programs, tmp_path):
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [Requirement(line) for line in project["optional-dependencies"]["test"]]
    install(programs / "python", *(str(one) for one in requirements if one.name in NEEDED))

    done = subprocess.run(  # noqa: S603 - our own command line
        [programs / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *SUITE],
        capture_output=True, text=True, check=False, cwd=REPOSITORY, timeout=1500,
        env={**ISOLATED, "PYTHONPYCACHEPREFIX": str(tmp_path)},
    )  # fmt: skip

    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 1_000, done.stdout[-300:]
