"""The data directories of releases, each as an archive with what the release said about it.

``tests/cases/releases/1.0.0-sqlite.tar.xz`` is a data directory as a killed gateway of version 1.0.0
left it; in ``1.0.0-postgresql.tar.xz`` the database is SQL, as ``pg_dump`` wrote it. The JSON file
beside each contains the answers of that version, and the digests of its migrations.
"""

import json
import re
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import psycopg

from tests.fakes.servers.gateway import Gateway
from tests.fakes.servers.postgresql import Postgres
from tests.fakes.upstreams.upstream import ScriptedUpstream

FOLDER: Final = Path(__file__).parents[2] / "cases" / "releases"
RELEASES: Final = sorted(path.stem for path in FOLDER.glob("*.json"))
"""Version and database, such as ``1.0.0-sqlite``."""
MIGRATIONS: Final = Path(__file__).parents[3] / "proxy" / "migrations"
SERVER_MADE: Final = frozenset({"journal-0/reserve", "ledger.sqlite3-shm"})
"""Files that the next process makes again."""
DUMP: Final = "database.sql"
ENGINE: Final = "engine"
"""The upstream of the archives. It is reached through a proxy, because its port is not fixed."""

REPORTS: Final = (
    "usage/?bucket=1d&group_by=team&group_by=model&{period}",
    "summary/?{period}",
    "stop_reasons/?group_by=model&{period}",
    "errors/?{period}",
    "outcomes/?group_by=session&{period}",
    "sessions/?{period}",
    "requests/?limit=100&{period}",
    "search/?q=marmalade",
    "audit/?limit=100&{period}",
    "keys/",
    "teams/",
    "users/",
    "models/",
    "upstreams/",
    "webhooks/",
    "pauses/",
    "reports/",
)
"""What is read through the API. A report that depends on today's date cannot be compared."""
VOLATILE: Final = frozenset({"base_url", "data_refreshed_at", "last_used_at", "next_page"})
"""The port of the sandbox, and the time of the last use of a key, differ in each run."""
OF_INTERRUPTED: Final = ("id", "outcome", "state")
"""The start that finds an open request decides when it ended; only this is compared of it."""


def serve(
    folder: Path, proxy: ScriptedUpstream, postgres: Postgres | None = None, **fields: Any
) -> Gateway:
    """Return a gateway on ``folder/data`` that reaches the upstream ``engine`` through the proxy."""
    environment = {} if postgres is None else {"DATABASE_URL": postgres.url}
    environment |= {
        "HTTP_PROXY": proxy.url,
        "NO_PROXY": "127.0.0.1",
        "BRIDGE_ADMIN_PASSWORD": "of-the-upgrade-test",
    }
    return Gateway(folder, environment=environment, migrated=False, **fields)


def dump(postgres: Postgres, data: Path) -> None:
    """Write the database as SQL into the data directory, without commands that only psql knows."""
    command = [postgres.binaries / "pg_dump", "--inserts", "--no-owner", "--dbname", postgres.url]
    dumped = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - our own command line
    lines = [line for line in dumped.splitlines() if not line.startswith("\\")]
    (data / DUMP).write_text("\n".join(lines), encoding="utf-8")


def restore(postgres: Postgres, data: Path) -> None:
    """Fill an empty database with the SQL from the data directory, and remove the file."""
    with psycopg.connect(postgres.url) as connection:
        connection.execute((data / DUMP).read_bytes())
    (data / DUMP).unlink()


def pack(data: Path, archive: Path) -> None:
    """Write an archive without times and owners, so that equal files give equal bytes."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime = member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for path in sorted(data.rglob("*")):
            name = path.relative_to(data).as_posix()
            if name not in SERVER_MADE:
                tar.add(path, name, recursive=False, filter=plain)


def unpack(release: str, data: Path) -> None:
    """Create the data directory of a release."""
    data.mkdir(mode=0o700, parents=True)
    with tarfile.open(FOLDER / f"{release}.tar.xz") as tar:
        tar.extractall(data, filter="data")


def expectation(release: str) -> dict[str, Any]:
    """Return the answers of this release, its key, and the digests of its migrations."""
    found: dict[str, Any] = json.loads((FOLDER / f"{release}.json").read_text(encoding="utf-8"))
    return found


def get(gateway: Gateway, path: str) -> Any:
    reply = gateway.request("GET", f"/api/v1/{path}")
    assert reply.status == 200, (path, reply.body)
    return json.loads(reply.body)


def read_back(gateway: Gateway, until: str) -> dict[str, Any]:
    """Return what the gateway says about its records until a time: reports, transcripts, export."""
    period = f"from=2026-06-01T00:00:00Z&to={until}"
    answers = {path: get(gateway, path.format(period=period)) for path in REPORTS}
    audit = answers["audit/?limit=100&{period}"]  # the end of a period is rounded up
    end = datetime.fromisoformat(until)
    audit["data"] = [
        entry for entry in audit["data"] if datetime.fromisoformat(entry["created_at"]) < end
    ]
    exported = gateway.manage("exportledger", "--format", "ndjson", "--until", until)
    rows = [json.loads(line) for line in exported.splitlines()]
    transcripts = {}
    for row in answers["requests/?limit=100&{period}"]["data"]:
        path = f"requests/{row['id']}/transcript/"
        if row["team"]["name"] == "platform" and row["outcome"] != "interrupted":
            transcripts[row["id"]] = get(gateway, path)
    return comparable({"answers": answers, "export": rows, "transcripts": transcripts})


def comparable(value: Any) -> Any:
    """Return the value without what differs in each run."""
    if isinstance(value, list):
        return [comparable(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.get("outcome") == "interrupted":
        return {name: value[name] for name in OF_INTERRUPTED if name in value}
    return {name: comparable(one) for name, one in value.items() if name not in VOLATILE}


AMOUNT = re.compile(r"_usd$|\.cost_parts\.\w+$")


KEY_NAME = re.compile(r"\.key\.name$")
"""Rows show the present name of a key by its id; in 1.0 each row had a name of its own."""


def is_same_amount(path: str, expected: Any, found: Any) -> bool:
    """Whether ``path`` is an amount in dollars, and differs only by zeros at its end."""
    is_amount = AMOUNT.search(path) and isinstance(expected, str) and isinstance(found, str)
    return bool(is_amount) and Decimal(expected) == Decimal(found)


def differences(expected: Any, found: Any, path: str = "") -> Iterator[str]:
    """Yield each place where a later version says something else; it may add fields."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for name, value in expected.items():
            if name not in found:
                yield f"{path}.{name} is missing"
            else:
                yield from differences(value, found[name], f"{path}.{name}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, f"{path}[{number}]")
    elif expected != found and not (is_same_amount(path, expected, found) or KEY_NAME.search(path)):
        yield f"{path}: {str(expected)[:200]} became {str(found)[:200]}"
