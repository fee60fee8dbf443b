"""How much smaller a conversation of 100 turns is in the ledger than as JSON.

python benchmarks/ledger_session.py [--postgresql] [--turns 100]
"""

import argparse
import json
import time
from itertools import chain

import ledger_world
from rich.console import Console
from rich.progress import track
from rich.table import Table

LEGEND = """JSON: all request bodies and answers. kept: bytes of parts and manifests. on disk: as
the database reports it, indexes included. to jsonb: the same bodies and answers as jsonb,
compressed as PostgreSQL does it, against on disk; many small tables fill their pages badly, so
one session alone looks worse there than each of many. 4 sides: with upstream requests, raw
streams and emitted streams, against parts, manifests and streams."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database-url", default="")
    parser.add_argument("--postgresql", action="store_true", help="start a server for this run")
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 10])
    options = parser.parse_args()
    postgresql = ledger_world.private_postgres() if options.postgresql else ""
    ledger_world.set_up(postgresql or options.database_url)
    ratios = ("kept", "ratio", "on disk", "ratio", "to jsonb", "4 sides", "ratio")
    table = Table("sessions", "bodies", "JSON", *ratios)
    for sessions in options.sessions:
        table.add_row(str(sessions), *measure(options.turns, sessions))
    Console().print(table)
    print(LEGEND)


def measure(turns: int, sessions: int) -> list[str]:
    """Store so many sessions in an empty ledger; none repeats a word of another."""
    from django.db import connection
    from django.db.models import Sum
    from django.db.models.functions import Length

    from proxy.models import Exchange, Part, Transcript
    from proxy.record import retention, sizes
    from proxy.record.posting import Story, post
    from proxy.record.records import Chunk, CloseRecord, OpenRecord

    for model in (Transcript, Part, Exchange):
        model.objects.all().delete()
    retention.free_space(full=True)
    empty = on_disk()
    plain = four = first = last = 0
    documents: list[bytes] = []
    said_in_all = chain.from_iterable(ledger_world.session(turns, n) for n in range(sessions))
    for number, (request, answer) in enumerate(
        track(said_in_all, total=turns * sessions, transient=True)
    ):
        body, said = json.dumps(request).encode(), json.dumps(answer).encode()
        reads = ledger_world.upstream_stream(request, answer)
        first, last = first or len(body), max(last, len(body))
        plain += len(body) + len(said)
        documents += [body, said]
        four += 2 * len(body) + 2 * sum(len(read) for _, read in reads)
        pk = f"req_{number:026d}"
        opening = OpenRecord(
            id=pk, created=time.time(), worker="w", team="t", key_id=1, key_name="k", body=body
        )
        closing = CloseRecord(
            id=pk, finished=time.time(), outcome="completed", status=200, answer=answer
        )
        post([Story(opening, [Chunk(id=pk, reads=reads)], closing)])
    kept = (
        Part.objects.aggregate(n=Sum(Length("data")))["n"]
        + Transcript.objects.aggregate(n=Sum(Length("manifest")))["n"]
    )
    streams = Transcript.objects.aggregate(n=Sum(Length("stream")))["n"]
    Transcript.objects.update(stream=None)  # what is left is what the JSON above would take
    retention.free_space(full=True)
    disk = on_disk() - empty
    assert sizes.sizes()
    return [
        f"{first // 1000}-{last // 1000} KB",
        f"{plain / 1e6:.2f} MB",
        f"{kept / 1e3:.0f} KB",
        f"{plain / kept:.1f}",
        f"{disk / 1e3:.0f} KB",
        f"{plain / disk:.1f}",
        f"{as_jsonb(documents) / disk:.1f}" if connection.vendor == "postgresql" else "",
        f"{(kept + streams) / 1e3:.0f} KB",
        f"{four / (kept + streams):.1f}",
    ]


def as_jsonb(documents: list[bytes]) -> int:
    """Bytes of a table with one jsonb column that holds each body and answer as it came."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS plain")
        cursor.execute("CREATE TABLE plain (body jsonb NOT NULL)")
        for document in documents:
            cursor.execute("INSERT INTO plain VALUES (%s::jsonb)", [document.decode()])
        cursor.execute("VACUUM FULL plain")
        cursor.execute("SELECT pg_total_relation_size('plain')")
        size: int = cursor.fetchone()[0]
        cursor.execute("DROP TABLE plain")
    return size


def on_disk() -> int:
    from proxy.record import sizes

    found = {size.table: size.bytes for size in sizes.sizes()}
    return found["proxy_part"] + found["proxy_transcript"]


if __name__ == "__main__":
    main()
