"""What is installed from a wheel works without this checkout, on every Python that is found.

The suite itself proves the interpreter it runs on; here are the others, each in an environment
that holds nothing yet: the installed gateway serves, and the tests that lean on the language most
pass (translator, the record, requests through the gateway).
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("translator", "proxy", "bridge_project")
VERSIONS = ("3.11", "3.12", "3.13")
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
ISOLATED = {
    name: value
    for name, value in os.environ.items()
    if name in {"PATH", "HOME", "LANG", "TMPDIR"} or name.startswith(("PIP_", "UV_", "SSL_"))
}


def interpreter(version: str) -> str | None:
    """On PATH, or among pyenv's; one that only pretends (a shim) does not count."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    kept = sorted(pyenv.glob(f"{version}.*/bin/python{version}"))
    for place in [shutil.which(f"python{version}"), *map(str, reversed(kept))]:
        if place is not None:
            said = run([place, "-c", "print('works')"], check=False)
            if said.stdout == "works\n":
                return place
    return None


def run(command: list, *, check: bool = True, **more) -> subprocess.CompletedProcess:
    done = subprocess.run(  # noqa: S603 - our own command lines
        command, capture_output=True, text=True, check=False, env=ISOLATED, timeout=280, **more
    )
    assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done


# Not what starts servers of Debian's, browsers or further gateways: those are of one Python or none.
SUITE = (
    "tests/translator",
    "--ignore=tests/translator/test_corpus.py",
    *(
        f"tests/proxy/record/test_{name}.py"
        for name in ("spool", "spool_file", "posting", "transcripts")
    ),
    *(f"tests/proxy/gateway/test_{name}.py" for name in ("messages", "translation")),
    "tests/proxy/metrics",
    "tests/proxy/test_sealing.py",
)
NEEDED = {"pytest", "pytest-django", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "hypothesis",
          "anthropic", "openai", "prometheus-client", "python-ulid"}  # fmt: skip

OTHERS = [version for version in VERSIONS if version != HERE and interpreter(version)]


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


def environment(python: str, folder: Path, *wanted: Path, options: tuple[str, ...] = ()) -> Path:
    """A new virtual environment with these wheels; its folder of programs."""
    run([python, "-m", "venv", "--without-pip", folder])
    install(folder / "bin/python", *wanted, options=options)
    return folder / "bin"


def install(target: Path, *wanted: str | Path, options: tuple[str, ...] = ()) -> None:
    """By uv, which takes seconds, or where that fails by pip."""
    uv = shutil.which("uv", path=Path(sys.executable).parent)
    if (
        uv is None
        or run(
            [uv, "pip", "install", "--quiet", "--python", target, *options, *wanted], check=False
        ).returncode
    ):
        pip = [sys.executable, "-m", "pip", "--python", target, "install", "--quiet"]
        run([*pip, "--disable-pip-version-check", "--no-compile", *options, *wanted])


@pytest.mark.timeout(400)
def test_a_wheel_holds_every_file_of_its_packages(wheels):
    if not (REPOSITORY / ".git").exists() or not shutil.which("git"):
        pytest.skip("not a git checkout: nothing is tracked here")
    listed = run(["git", "-C", str(REPOSITORY), "ls-files", *PACKAGES]).stdout.split()

    held = set(zipfile.ZipFile(wheel(wheels, "messages_bridge")).namelist())

    assert len(listed) > 200
    assert [name for name in listed if (REPOSITORY / name).exists() and name not in held] == []


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

    told = run([programs / "python", "-I", script], cwd=tmp_path).stdout

    names, place = json.loads(told)
    assert names == ["messages-bridge-translator"]
    assert place.startswith(str(tmp_path))
    assert {name.split("/")[0] for name in zipfile.ZipFile(made).namelist()} == {
        "translator",
        made.name.removesuffix("-py3-none-any.whl") + ".dist-info",
    }


@pytest.fixture(scope="module")
def programs(request, wheels, tmp_path_factory) -> Path:
    """The programs of an environment of this version, with the project's wheel in it."""
    python = interpreter(request.param)
    if python is None:
        pytest.skip(f"NO python{request.param} HERE: this version is NOT TESTED")
    folder = tmp_path_factory.mktemp(f"python{request.param}")
    return environment(python, folder / "venv", wheel(wheels, "messages_bridge"))


@pytest.fixture
def served(programs, tmp_path) -> Iterator[tuple[str, str, Path]]:
    """The installed gateway, started as its first user would; its address, key and folder."""
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


@pytest.mark.timeout(400)
@pytest.mark.parametrize("programs", ELSEWHERE if OTHERS else [HERE], indirect=True)
def test_the_installed_gateway_serves_its_first_answer(served):
    url, key, folder = served
    body = {
        "model": "claude-x", "max_tokens": 50, "stream": True,
        "messages": [{"role": "user", "content": "Hello"}],
    }  # fmt: skip
    asked = urllib.request.Request(  # noqa: S310 - loopback
        f"{url}/v1/messages", json.dumps(body).encode(),
        {"x-api-key": key, "content-type": "application/json"},
    )  # fmt: skip

    with urllib.request.urlopen(asked, timeout=30) as answer:  # noqa: S310 - loopback
        told = answer.read().decode()
    with urllib.request.urlopen(f"{url}/admin/login/", timeout=30) as page:  # noqa: S310 - loopback
        html = page.read().decode()

    assert "event: message_stop" in told
    assert (folder / "data/ledger.sqlite3").exists()
    for place in re.findall(r'(?:href|src)="(/static/[^"]+)"', html)[:4]:
        with urllib.request.urlopen(url + place, timeout=30) as file:  # noqa: S310 - loopback
            assert file.status == 200


@pytest.mark.timeout(1700)
@pytest.mark.parametrize("programs", ELSEWHERE, indirect=True)
def test_the_suite_s_core_passes_on_other_pythons(programs, tmp_path):
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [Requirement(line) for line in project["optional-dependencies"]["test"]]
    install(programs / "python", *(str(one) for one in asked if one.name in NEEDED))

    done = subprocess.run(  # noqa: S603 - our own command line
        [programs / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *SUITE],
        capture_output=True, text=True, check=False, cwd=REPOSITORY, timeout=1500,
        env={**ISOLATED, "LAWS": "few", "PYTHONPYCACHEPREFIX": str(tmp_path)},
    )  # fmt: skip

    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 2_000, done.stdout[-300:]
