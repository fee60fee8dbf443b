"""Measure admission: budgets after an hour without the database, and rate limits of one team.

    python -m benchmarks.counters budgets [--minutes 60] [--rate 60] [--store redis|sqlite]
    python -m benchmarks.counters limits [--processes 32] [--rate 60] [--seconds 10]

``budgets`` reserves and settles the requests of ``--minutes`` without posting any of them, as if
the database were unavailable, then measures further requests. ``limits`` lets many processes take
slots of one team, each at ``--rate`` requests a second, and measures each wait. Both start a
private redis-server on loopback; the time in Redis is its own count of its scripts, which does not
depend on other programs of the machine as much as the waits do.
"""

import argparse
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Final

import django
from rich.console import Console
from rich.table import Table

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

# These imports need Django.
from proxy.counters.budget_store import BudgetLimit, BudgetStore  # noqa: E402
from proxy.counters.redis_budgets import RedisBudgets  # noqa: E402
from proxy.counters.redis_client import client_of  # noqa: E402
from proxy.counters.redis_limits import RedisLimits  # noqa: E402
from proxy.counters.shared_state import SqliteStates  # noqa: E402
from proxy.counters.shared_state_failover import FailoverStates  # noqa: E402
from proxy.counters.sqlite_budgets import SqliteBudgets  # noqa: E402
from proxy.gateway.admission.shared_rate_limits import SharedLimiter  # noqa: E402
from proxy.gateway.snapshot.config_snapshot import (  # noqa: E402
    NO_LIMITS,
    Caller,
    Limits,
    ModelAllowList,
    TeamEntry,
)
from tests.fakes.servers.redis_server import RedisServer  # noqa: E402

LIMITS: Final = [BudgetLimit("team", 10**15), BudgetLimit("key", None)]
MEASURED: Final = 2_000
RUNNING: Final = 60
"""Requests that run at the same time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    budgets = kinds.add_parser("budgets")
    budgets.add_argument("--minutes", type=float, default=60)
    budgets.add_argument("--store", choices=("redis", "sqlite"))
    limits = kinds.add_parser("limits")
    limits.add_argument("--processes", type=int, default=32)
    limits.add_argument("--seconds", type=float, default=10)
    for each in (budgets, limits):
        each.add_argument("--rate", type=float, default=60, help="requests a second")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder))
        server.start()
        try:
            {"budgets": measure_budgets, "limits": measure_limits}[options.kind](
                options, Path(folder), server
            )
        finally:
            server.close()


def measure_budgets(options: argparse.Namespace, folder: Path, server: RedisServer) -> None:
    stores: dict[str, Callable[[], BudgetStore]] = {
        "redis": lambda: RedisBudgets(server.url, 10.0),
        "sqlite": lambda: SqliteBudgets(folder / "counters.sqlite3"),
    }
    table = Table(
        "store", "unposted", "reserve p50 ms", "p99 ms", "settle p50 ms", "p99 ms", "in Redis us"
    )
    for name, create in stores.items():
        if options.store in (None, name):
            store = create()
            for limit in LIMITS:
                store.publish(limit.counter, 0)
            server.client.config_resetstat()
            unposted = int(options.minutes * 60 * options.rate)
            table.add_row(name, "0", *figures(store, "first"), script_us(server))
            for number in range(unposted):
                serve(store, f"req_{number:08}")
            server.client.config_resetstat()
            table.add_row(name, f"{unposted:,}", *figures(store, "last"), script_us(server))
            server.client.config_resetstat()
    Console().print(table)


def serve(store: BudgetStore, name: str) -> None:
    store.reserve(name, "one", 1_000, LIMITS)
    store.settle(name, [limit.counter for limit in LIMITS], 100)


def figures(store: BudgetStore, name: str) -> list[str]:
    """Measure reservations and settlements while ``RUNNING`` requests run."""
    waits: dict[str, list[float]] = {"reserve": [], "settle": []}
    counters = [limit.counter for limit in LIMITS]
    for number in range(MEASURED + RUNNING):
        if number < MEASURED:
            start = time.perf_counter()
            assert store.reserve(f"{name}_{number:06}", "one", 1_000, LIMITS).granted
            waits["reserve"].append(time.perf_counter() - start)
        if number >= RUNNING:
            start = time.perf_counter()
            store.settle(f"{name}_{number - RUNNING:06}", counters, 100)
            waits["settle"].append(time.perf_counter() - start)
    return [text for each in waits.values() for text in percentiles(each)]


def script_us(server: RedisServer) -> str:
    """Return the mean time of a script in Redis, in microseconds."""
    scripts = server.client.info("commandstats").get("cmdstat_evalsha")
    return f"{scripts['usec_per_call']:.0f}" if scripts else "-"


def percentiles(seconds: list[float]) -> tuple[str, str]:
    cuts = quantiles(seconds, n=100)
    return f"{cuts[49] * 1_000:.2f}", f"{cuts[98] * 1_000:.2f}"


def measure_limits(options: argparse.Namespace, folder: Path, server: RedisServer) -> None:
    arguments = (folder / "limits.sqlite3", server.url, options.rate, options.seconds)
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        results = pool.starmap(take_slots, [(n, *arguments) for n in range(options.processes)], 1)
    waits = [wait for each in results for wait in each]
    table = Table("processes", "requests", "requests/s", "wait p50 ms", "p99 ms", "in Redis us")
    table.add_row(
        str(options.processes), f"{len(waits):,}", f"{len(waits) / options.seconds:,.0f}",
        *percentiles(waits), script_us(server),
    )  # fmt: skip
    Console().print(table)


def take_slots(number: int, file: Path, url: str, rate: float, seconds: float) -> list[float]:
    """Take and release slots of one team in this process; return the seconds of each wait.

    The requests arrive at random times; each wait begins when its request arrives.
    """
    states = FailoverStates(RedisLimits(client_of(url, 10.0)), SqliteStates(file))
    process, sender = SharedLimiter(states, f"process-{number}"), caller()
    process.release(process.acquire(sender, 10), 0, 1)  # connect
    chance = random.Random(number)
    waits, due = [], time.monotonic() + 1
    end = due + seconds
    while due < end:
        time.sleep(max(0.0, due - time.monotonic()))
        slot = process.acquire(sender, 10)
        waits.append(time.monotonic() - due)
        process.release(slot, 3, 1)
        due += chance.expovariate(rate)
    return waits


def caller() -> Caller:
    team = TeamEntry(
        name="together",
        store_full=True,
        models=ModelAllowList(),
        limits=Limits(rpm=10**7, tpm=10**9),
    )
    return Caller(
        key_id=1, key_name="ada", meter="together/ada", team=team, user="", scopes=frozenset(),
        models=ModelAllowList(), limits=NO_LIMITS, ip_allow=(), strict=False, events=frozenset(),
    )  # fmt: skip


if __name__ == "__main__":
    main()
