"""Measure the search of transcripts: the time of a first page, and what the index costs.

    python -m benchmarks.ledger.search --parts 1000000 [--postgresql] [--fill-s 1800]

The texts are pieces of Python's standard library, 1 KB long on average. The costs are measured with
conversations of 100 turns, which the drainer writes with and without the index.
"""

import argparse
import json
import os
import random
import statistics
import sysconfig
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.ledger import world

BATCH = 2000  # parts
PARTS_PER_REQUEST = 4
TEAMS = 20
USERS = 200
START = datetime(2026, 1, 1, tzinfo=UTC)
TIMES = 20

QUERIES: dict[str, tuple[str, dict[str, str]]] = {
    "a common word": ("return", {}),
    "two common words": ("self import", {}),
    "a phrase of common words": ('"if not isinstance"', {}),
    "a part of a common word": ("turn", {}),
    "a part of three letters": ("sel", {}),
    "a path": ("lib/python3", {}),
    "a rare word": ("{rare}", {}),
    "a part of a rare word": ("{part}", {}),
    "a word that no text has": ("inexistentword", {}),
    "a phrase that no text has": ('"return import self"', {}),
    "a common word of one team": ("return", {"team": "team-7"}),
    "a rare word of another team": ("{rare}", {"team": "team-7"}),
    "a common word of one user": ("return", {"user": "user-77"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=int, default=1_000_000)
    parser.add_argument("--fill-s", type=float, default=3600, help="stop to fill after this time")
    parser.add_argument("--postgresql", action="store_true", help="start a server for this run")
    parser.add_argument("--database-url", default="")
    options = parser.parse_args()
    url = options.database_url
    if options.postgresql:
        url = world.private_postgres("shared_buffers=2GB", "fsync=off")
    world.set_up(url)
    Console().print(costs())
    parts, rare = fill(options.parts, options.fill_s)
    Console().print(measure(parts, rare))
    parts_mb, index_mb = _megabytes()
    print(f"parts {parts_mb:,.0f} MB, index {index_mb:,.0f} MB")


def costs(sessions: int = 4) -> Table:
    """Return what the index adds to bytes and drain CPU for conversations of 100 turns."""
    table = Table("", "CPU ms a request", "parts MB", "index MB")
    for name, is_on in (("without the index", False), ("with the index", True)):
        cpu, requests = _drain(sessions, is_on=is_on)
        parts, index = _megabytes()
        table.add_row(name, f"{cpu / requests:.2f}", f"{parts:.1f}", f"{index:.1f}")
        _clear()
    return table


def _megabytes() -> tuple[float, float]:
    """Return the size of the parts, and of the index with its entries and occurrences."""
    from proxy.ledger.database.table_sizes import sizes

    found = {size.table: size.bytes / 1e6 for size in sizes()}
    return found["proxy_part"], sum(
        size for name, size in found.items() if name.startswith("proxy_search")
    )


def _drain(sessions: int, *, is_on: bool) -> tuple[float, int]:
    """Write the conversations; return the CPU milliseconds and the number of requests."""
    from proxy.ledger.journal.records import CloseRecord, OpenRecord
    from proxy.ledger.posting import ledger_writer
    from proxy.ledger.posting.ledger_writer import ExchangeRecords, write_to_database

    object.__setattr__(ledger_writer.conf, "search", is_on)
    server = world.server_process() if _is_postgresql() else None
    count, spent = 0, 0.0
    for number in range(sessions):
        batch = []
        for request, answer in world.session(100, number):
            count += 1
            at = START.timestamp() + count
            ident = f"req_{count:026d}"
            opening = OpenRecord(
                id=ident, created=at, worker="w", team="team-1", key_id=number, key_name="k",
                model_requested="m", body=json.dumps(request).encode(),
            )  # fmt: skip
            closing = CloseRecord(
                id=ident, finished=at, outcome="completed", status=200, answer=answer
            )
            batch.append(ExchangeRecords(opening, [], closing))
        for at in range(0, len(batch), 10):
            before = world.cpu_ms(server)
            write_to_database(batch[at : at + 10])
            spent += world.cpu_ms(server) - before
    object.__setattr__(ledger_writer.conf, "search", True)
    return spent, count


def _is_postgresql() -> bool:
    from django.db import connection

    return connection.vendor == "postgresql"


def _clear() -> None:
    from proxy.ledger.maintenance import retention
    from proxy.ledger.search import indexer
    from proxy.models import Exchange, Part, Transcript

    indexer.forget_parts(list(Part.objects.values_list("pk", flat=True)))
    for model in (Transcript, Part, Exchange):
        model.objects.all().delete()
    retention.free_space(full=True)


def fill(parts: int, seconds: float) -> tuple[int, list[str]]:
    """Write parts with their requests and index; return their number and some rare words."""
    from django.db import transaction

    from proxy.ledger.database.bulk_sql import select, write
    from proxy.ledger.posting.exchange_columns import blank_row
    from proxy.ledger.search.indexer import NewParts, index_parts
    from proxy.ledger.transcripts import zstd_dictionary
    from proxy.models import Exchange, Part, Transcript

    chance = random.Random(1)
    texts = _texts(chance)
    compress = zstd_dictionary.compressor()
    rare: list[str] = []
    began, done = time.monotonic(), 0
    manifest = compress(b"\x80")
    while done < parts and time.monotonic() - began < seconds:
        rows, requests, some = [], [], {}
        for number in range(done, done + BATCH):
            word = f"{chance.choice(['alpha', 'beta', 'gamma'])}{chance.getrandbits(48):012x}"
            if not number % 1000:
                rare.append(word)
            digest = chance.randbytes(32)
            content = [{"type": "text", "text": f"{next(texts)} {word}"}]
            text = json.dumps({"role": "user", "content": content}).encode()
            some[digest] = text
            rows.append(
                {"digest": digest, "size": len(text), "data": compress(text), "used": START}
            )
        for number in range(done // PARTS_PER_REQUEST, (done + BATCH) // PARTS_PER_REQUEST):
            row = blank_row(f"req_{10**9 + number:026d}")
            row.created = row.finished = START + timedelta(seconds=number)
            row.state, row.outcome = "closed", "completed"
            row.team, row.user = f"team-{number % TEAMS}", f"user-{number % USERS}"
            row.key_name, row.model_requested = "k", "m"
            requests.append(row)
        with transaction.atomic():
            write(Part, rows)
            write(Exchange, map(vars, requests))
            transcript = {"created": START, "prefix": bytes(16), "manifest": manifest}
            write(
                Transcript,
                [transcript | {"exchange_id": row.id, "stream": None} for row in requests],
            )
            found = select(Part, ("digest", "id"), "digest", list(some))
            ids = {bytes(digest): pk for digest, pk in found}
            ordered = [ids[digest] for digest in some]
            groups = [
                NewParts(row.id, row.team, ordered[at : at + PARTS_PER_REQUEST])
                for row, at in zip(requests, range(0, BATCH, PARTS_PER_REQUEST), strict=True)
            ]
            index_parts(groups, {ids[digest]: text for digest, text in some.items()})
        done += BATCH
        if not done % 100_000:
            print(f"{done:,} parts, {time.monotonic() - began:,.0f} s", flush=True)
    return done, rare


def _texts(chance: random.Random) -> Iterator[str]:
    """Yield pieces of the standard library's source with the paths of its files."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [path for path in sorted(root.rglob("*.py")) if "site-packages" not in path.parts]
    pool = [(str(path), path.read_text(errors="replace")) for path in files]
    pool = [(name, text) for name, text in pool if len(text) > 1000]
    while True:
        name, text = chance.choice(pool)
        size = int(min(20_000, 100 + chance.expovariate(1 / 900)))
        at = chance.randrange(max(1, len(text) - size))
        yield f"{name if not chance.randrange(10) else ''}\n{text[at : at + size]}"


def measure(parts: int, rare: list[str]) -> Table:
    """Return the time of the first page for each kind of query."""
    from django.db import connection

    from proxy.ledger.search.query import parse_query
    from proxy.ledger.search.search import search
    from proxy.permissions.row_permissions import Reader, visible_exchanges
    from proxy.transcript_search import Filters

    if _is_postgresql():
        connection.cursor().execute("ANALYZE")
    chance = random.Random(2)
    table = Table(f"first page of 20, {parts:,} parts", "results", "p50 ms", "p95 ms")
    every = []
    for name, (query, values) in QUERIES.items():
        times, count = [], 0
        for _ in range(TIMES):
            word = chance.choice(rare)
            text = query.format(rare=word, part=word[3:14])
            filters = Filters(**values)
            visible = visible_exchanges(Reader(everything=True)).filter(filters.condition())
            teams = [filters.team] if filters.team else []
            before = time.perf_counter()
            page = search(parse_query(text), visible, limit=20, teams=teams)
            times.append((time.perf_counter() - before) * 1000)
            count = len(page.results)
        every += times
        table.add_row(name, str(count), f"{statistics.median(times):.0f}", f"{_p95(times):.0f}")
    table.add_section()
    table.add_row("all", "", f"{statistics.median(every):.0f}", f"{_p95(every):.0f}")
    return table


def _p95(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.95) - 1]


if __name__ == "__main__":
    os.environ.setdefault("BRIDGE_SEARCH", "1")
    main()
