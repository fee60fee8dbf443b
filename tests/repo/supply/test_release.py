"""deploy/release: the same commit gives the same bytes, and a changed file is detected."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
REPOSITORY = Path(__file__).parents[3]
SIGNER = "release@example.com"


def run(*command: str | Path, cwd: Path = REPOSITORY) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # noqa: S603 - our own command lines
        command, cwd=cwd, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHON": sys.executable},
    )  # fmt: skip


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "release"
    made = run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", SIGNER, "-f", path)
    assert made.returncode == 0, made.stderr
    return path


def build(folder: Path, *key: Path) -> Path:
    done = run(REPOSITORY / "deploy/release", folder, *key)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def release(key: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (REPOSITORY / ".git").exists() or not shutil.which("git"):
        pytest.skip("not a git checkout: there is no commit to build")
    return build(tmp_path_factory.mktemp("release"), key)


def verify(folder: Path, key: Path) -> list[int]:
    """Run the commands of docs/reference/versions.md; return their exit statuses."""
    text = (REPOSITORY / "docs/reference/versions.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```sh\n(ssh-keygen -Y verify.*?)```", text, re.DOTALL)
    (folder.parent / "allowed_signers").write_text(
        f"{SIGNER} {key.with_suffix('.pub').read_text()}"
    )
    commands = block.replace("allowed_signers", "../allowed_signers").replace(
        "release@messages-bridge.example", SIGNER
    )
    return [run("sh", "-c", line, cwd=folder).returncode for line in commands.splitlines()]


def test_two_builds_of_a_commit_are_identical(release: Path, tmp_path: Path) -> None:
    again = build(tmp_path / "again")

    names = {path.name for path in again.iterdir()}
    assert {path.name for path in release.iterdir()} == names | {"SHA256SUMS.sig"}
    different = [
        name for name in names if (release / name).read_bytes() != (again / name).read_bytes()
    ]
    assert different == []
    assert {name.rpartition(".")[2] for name in names} == {"whl", "gz", "json", "SHA256SUMS"}


def test_the_signature_verifies_and_detects_a_changed_file(
    release: Path, key: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(release, tmp_path / "copy"))
    assert verify(copy, key) == [0, 0]

    wheel = next(copy.glob("messages_bridge-*.whl"))
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    [signature, sums] = verify(copy, key)
    assert (signature, sums != 0) == (0, True)

    name, digest = wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest()
    listed = (copy / "SHA256SUMS").read_text()
    (copy / "SHA256SUMS").write_text(re.sub(rf"\w+(?=  {name})", digest, listed))
    [signature, sums] = verify(copy, key)
    assert (signature != 0, sums) == (True, 0)


def test_the_provenance_names_the_commit_and_the_digest_of_each_file(release: Path) -> None:
    statement = json.loads((release / "provenance.intoto.json").read_text())

    named = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    built = {path for path in release.iterdir() if path.suffix in {".whl", ".gz"}}
    assert len(built) == 3
    for path in {*built, release / "sbom.cdx.json"}:
        assert named[path.name] == hashlib.sha256(path.read_bytes()).hexdigest()
    commit = run("git", "rev-parse", "HEAD").stdout.strip()
    dependencies = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert dependencies[0]["digest"] == {"gitCommit": commit}
    assert all("unknown" not in each["uri"] for each in dependencies)


def test_the_sdist_contains_the_packages_and_no_trace_of_the_machine(release: Path) -> None:
    [sdist] = release.glob("messages_bridge-*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()

    assert {(one.uid, one.gid, one.uname, one.gname) for one in members} == {(0, 0, "", "")}
    assert len({one.mtime for one in members}) == 1
    assert any(one.name.endswith("/proxy/migrations/0001_initial.py") for one in members)


def test_a_directory_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.whl").touch()

    done = run(REPOSITORY / "deploy/release", tmp_path)

    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path} is not empty; name a new directory\n"
