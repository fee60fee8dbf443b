"""Containers of podman in namespaces of their own, and stand-ins for the images of other projects.

Their networks, mounts and processes are not those of this machine, and end with the holder: the
published ports cannot collide, and nothing stays behind.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.fakes.optional_tools import skip_loudly
from tests.waiting import until

from . import root_file_system as rootfs

Buildah = Callable[..., str]
"""Runs a command of buildah in the store of the test, and returns its output."""

SUBNET: Final = "10.89.77"
ENTRY: Final = """#!/bin/sh
# The entry point of the stand-ins, as far as deploy/compose.yaml uses that of the official images.
set -eu
case "$1" in
postgres)
  : "${POSTGRES_USER:?}" "${POSTGRES_DB:?}" "${POSTGRES_PASSWORD:?}"
  as() { setpriv --reuid=postgres --regid=postgres --init-groups "$@"; }
  mkdir -p /run/postgresql && chown postgres /run/postgresql
  mkdir -p "$PGDATA" && chown -R postgres:postgres "$PGDATA" && chmod 700 "$PGDATA"
  if [ ! -s "$PGDATA/PG_VERSION" ]; then
    printf %s "$POSTGRES_PASSWORD" >/tmp/password && chown postgres /tmp/password
    as initdb -U "$POSTGRES_USER" --pwfile=/tmp/password --auth-host=scram-sha-256 -D "$PGDATA"
    rm /tmp/password
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    as pg_ctl -D "$PGDATA" -o "-c listen_addresses=''" -w start
    as createdb -U "$POSTGRES_USER" "$POSTGRES_DB"
    as pg_ctl -D "$PGDATA" -m fast -w stop
  fi
  exec setpriv --reuid=postgres --regid=postgres --init-groups postgres -D "$PGDATA" -c "listen_addresses=*"
  ;;
redis-server)
  chown redis:redis /data
  exec setpriv --reuid=redis --regid=redis --init-groups "$@" --bind "*" --protected-mode no
  ;;
esac
exec "$@"
"""
STAND_INS: Final = ("docker.io/library/postgres:17", "docker.io/library/redis:7")
"""The images of deploy/compose.yaml that are not ours; it gives the command of Redis itself."""

CONTAINERS_CONF: Final = """[containers]
default_ulimits = ["nofile=1000:1000", "nproc=5000:5000"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_config_dir = "{folder}/networks"
"""
HOLDER: Final = """
umount /sys/fs/cgroup/unified 2>/dev/null || true  # crun cannot use both versions of cgroups
ip link set lo up && mount -t tmpfs tmpfs /run
[ ! -d /var/lib/cni ] || mount -t tmpfs tmpfs /var/lib/cni
echo ready && exec sleep infinity
"""
SEND: Final = """
import http.client, json, sys
method, path, body, headers = json.loads(sys.argv[1])
connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=60)
try:
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    print(json.dumps([answer.status, answer.read().decode()]))
except OSError as error:
    print(json.dumps([0, str(error)]))
"""


def make_stand_ins(buildah: Buildah, folder: Path) -> None:
    """Create one image for PostgreSQL and Redis from the packages of Debian, in its versions."""
    root = folder / "servers"
    packages = "--include=postgresql,redis-server"
    rootfs.run(["mmdebstrap", "--quiet", "--variant=minbase", packages, rootfs.SUITE, root])
    entry = root / "usr/local/bin/entry"
    entry.write_text(ENTRY, encoding="utf-8")
    entry.chmod(0o755)
    (root / "data").mkdir()
    [binaries] = (root / "usr/lib/postgresql").glob("*/bin")
    path = f"/{binaries.relative_to(root)}:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    container = buildah("from", "scratch")
    rootfs.run(["cp", "-a", f"{root}/.", buildah("mount", container)])
    shutil.rmtree(root)
    buildah(
        "config", "--entrypoint", '["entry"]', "--cmd", "postgres", "--workingdir", "/data",
        "--env", f"PATH={path}", "--env", "LANG=C.UTF-8",
        "--env", "PGDATA=/var/lib/postgresql/data", container,
    )  # fmt: skip
    buildah("commit", "-q", container, STAND_INS[0])
    buildah("tag", *STAND_INS)
    buildah("rm", container)


class Containers:
    """Podman and podman-compose on the images of a store; ``close`` ends all containers."""

    def __init__(self, store: Path, folder: Path) -> None:
        (folder / "containers.conf").write_text(
            CONTAINERS_CONF.format(folder=folder), encoding="utf-8"
        )
        (folder / "storage.conf").write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{store}/images"\nrunroot = "{store}/run"\n',
            encoding="utf-8",
        )
        self._folder = folder
        self._environment = {
            "PATH": os.environ["PATH"], "HOME": str(folder),
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }  # fmt: skip
        self._holder = subprocess.Popen(  # noqa: S603 - our own command line
            [  # noqa: S607 - see require_tools
                "setpriv", "--pdeathsig", "KILL",  # ends with the test, however that ends
                "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
                "bash", "-ec", HOLDER,
            ],
            stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if self._holder.stdout.readline() != b"ready\n":
            skip_loudly("NO NAMESPACES HERE: the compose file was not started")
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        [self._inside] = children.read_text().split()

    def call(self, *words: Any, check: bool = True) -> str:
        """Run a program inside the namespaces and return its output."""
        done = subprocess.run(  # noqa: S603 - our own command lines
            ["nsenter", "--target", self._inside, "--mount", "--net", "--pid", f"--wd={self._folder}", *map(str, words)],  # noqa: S607 - of util-linux, as unshare
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=self._environment,
        )  # fmt: skip
        assert not check or done.returncode == 0, (
            f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
        return done.stdout

    def compose(self, *words: Any) -> str:
        """Run a command of podman-compose in the folder."""
        return self.call(
            sys.executable, "-m", "podman_compose",
            "-f", "deploy/compose.yaml", "-f", "deploy/override.yaml", *words,
        )  # fmt: skip

    def require_start(self, image: str) -> None:
        """Skip the test if this machine does not start a container with a network."""
        try:
            self.call("podman", "network", "create", "--subnet", f"{SUBNET}.0/24", "trial")
            self.call("podman", "run", "--rm", "--network", "trial", "--entrypoint", "true", image)
        except AssertionError as refused:
            skip_loudly(
                f"NO CONTAINERS HERE: the compose file was not started: {str(refused)[-500:]}"
            )
        self.call("podman", "network", "rm", "trial")

    def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Send a request to the published port; return status and body, or 0 if nothing listens."""
        given = json.dumps([method, path, body and json.dumps(body), headers or {}])
        status, text = json.loads(self.call(sys.executable, "-c", SEND, given))
        return status, json.loads(text) if status and text.startswith(("{", "[")) else text

    def wait_until_ready(self) -> None:
        """Wait until the gateway behind the published port is ready."""
        until(
            lambda: self.send("GET", "/readyz")[0] == 200,
            lambda: self.compose("logs"),
            within_s=180,
        )

    def close(self) -> None:
        os.kill(int(self._inside), signal.SIGKILL)
        self._holder.wait()
        self._holder.stdout.close()
