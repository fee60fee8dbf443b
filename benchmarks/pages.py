"""Measure every page of the admin on a large ledger.

    python -m benchmarks.pages --rows 1000000

SQLite and one worker. The ledger is that of ``benchmarks.reports``, and ``--keep`` shares it.
The goal is a p95 of 0.5 s on a quiet machine; the CPU column does not depend on other load.
"""

import argparse
import os
import re
import time
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks import reports
from benchmarks.ledger import world

LIMIT_MS: Final = 500
LIST: Final = "proxy/exchange/"
PAGES: Final = {
    "dashboard": "",
    "dashboard, 30 days": "?range=30d",
    "requests": LIST,
    "requests of a model": f"{LIST}?model_requested=claude-model-3",
    "requests of a team": f"{LIST}?of_team=team-3",
    "requests of a session": f"{LIST}?session_id=session-7-0-10-31",
    "requests with a dialect that none has": f"{LIST}?spoke=anthropic",
    "requests that failed": f"{LIST}?result=failed",
    "requests whose id is typed": f"{LIST}?q=req_00000000000000000000000042",
    "sessions": "sessions/",
    "one session": "sessions/one/?id=session-7-0-10-31",
    "live": "live/",
    "comparison": "comparison/",
    "outcomes": "outcomes/",
    "storage": "storage/",
    "purge": "storage/purge/",
    "search": "search/",
    "audit": "proxy/auditentry/",
    "my readings": "my-readings/",
    "my account": "me/",
    "keys": "proxy/apikey/",
    "teams": "proxy/team/",
    "one team": "proxy/team/1/change/",
    "budgets": "proxy/budget/",
    "prices": "proxy/price/",
    "routes": "proxy/route/",
    "upstreams": "proxy/upstream/",
    "pauses": "proxy/pause/",
    "drift": "proxy/drift/",
    "users": "auth/user/",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--keep", default="", help="a directory to keep the ledger in, and reuse")
    options = parser.parse_args()
    directory = world.set_up(keep=options.keep)
    reports.fill(options.rows)
    password = reset_password()
    from tests.fakes.servers.gateway import Gateway
    from tests.fakes.servers.web_session import WebSession

    log = directory / f"gateway-{os.getpid()}"
    with Gateway(log, environment={"BRIDGE_DATA_DIR": str(directory)}) as gateway:
        session = WebSession(gateway)
        session.sign_in("benchmark", password)
        table = Table("page", "status", "p50 ms", "p95 ms", "CPU ms", "KB", "")
        for name, path in PAGES.items():
            table.add_row(name, *measured(gateway, session, path, options.times))
        memory = re.search(r"VmRSS:\s+(\d+) kB", status_of(gateway.process.pid))
    console = Console(width=100)
    console.print(table)
    console.print(f"memory of the worker after all pages: {int(memory[1]) // 1024} MB")
    console.print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def reset_password() -> str:
    """Create the superuser of the benchmark, or give it a new password; return the password."""
    import secrets

    from django.contrib.auth import get_user_model

    password = secrets.token_urlsafe(16)
    user, _ = get_user_model().objects.get_or_create(
        username="benchmark", defaults={"is_staff": True, "is_superuser": True}
    )
    user.set_password(password)
    user.save()
    return password


def measured(gateway: Any, session: Any, path: str, times: int) -> list[str]:
    took, before = [], reports.cpu_ms(gateway.process.pid)
    for _ in range(times):
        began = time.perf_counter()
        answer = session.send("GET", f"/admin/{path}")
        took.append((time.perf_counter() - began) * 1000)
    cpu = (reports.cpu_ms(gateway.process.pid) - before) / times
    took.sort()
    p95 = took[min(times - 1, int(times * 0.95))]
    figures = (took[times // 2], p95, cpu, len(answer.body) / 1024)
    return [
        str(answer.status),
        *(f"{one:.0f}" for one in figures),
        "over" if p95 > LIMIT_MS else "",
    ]


def status_of(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text(encoding="ascii")


if __name__ == "__main__":
    main()
