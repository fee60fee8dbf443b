"""Measure how much smaller a conversation of 100 turns is in the ledger than as JSON.

python -m benchmarks.ledger.session [--postgresql] [--turns 100]
"""

import argparse
import json
import time
from itertools import chain

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.ledger import world

LEGEND = """JSON: size of all request bodies and responses. stored: bytes of parts and manifests.
on disk: size that the database reports, with indexes. to jsonb: size of the same bodies and
responses as compressed jsonb, divided by "on disk"; a single session has a worse ratio than many,
because small tables do not fill their pages. 4 sides: size of the JSON with upstream requests, raw
streams and emitted streams, divided by the size of parts, manifests and streams."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database-url", default="")
    parser.add_argument("--postgresql", action="store_true", help="start a server for this run")
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 10])
    options = parser.parse_args()
    postgresql = world.private_postgres() if options.postgresql else ""
    world.set_up(postgresql or options.database_url)
    ratios = ("stored", "ratio", "on disk", "ratio", "to jsonb", "4 sides", "ratio")
    table = Table("sessions", "bodies", "JSON", *ratios)
    for sessions in options.sessions:
        table.add_row(str(sessions), *measure(options.turns, sessions))
    Console().print(table)
    print(LEGEND)


def measure(turns: int, sessions: int) -> list[str]:
    """Store this many sessions, which share no text, in an empty ledger; return the table row."""
    from django.db import connection
    from django.db.models import Sum
    from django.db.models.functions import Length

    from proxy.ledger.database import table_sizes
    from proxy.ledger.journal.records import Chunk, CloseRecord, OpenRecord
    from proxy.ledger.maintenance import retention
    from proxy.ledger.posting.ledger_writer import ExchangeRecords, write_to_database
    from proxy.models import Exchange, Part, Transcript

    for model in (Transcript, Part, Exchange):
        model.objects.all().delete()
    retention.free_space(full=True)
    empty = on_disk()
    plain = four = first = last = 0
    documents: list[bytes] = []
    all_turns = chain.from_iterable(world.session(turns, n) for n in range(sessions))
    for number, (request, answer) in enumerate(
        track(all_turns, total=turns * sessions, transient=True)
    ):
        body, response = json.dumps(request).encode(), json.dumps(answer).encode()
        reads = world.upstream_stream(request, answer)
        first, last = first or len(body), max(last, len(body))
        plain += len(body) + len(response)
        documents += [body, response]
        four += 2 * len(body) + 2 * sum(len(read) for _, read in reads)
        pk = f"req_{number:026d}"
        opening = OpenRecord(
            id=pk, created=time.time(), worker="w", team="t", key_id=1, key_name="k", body=body
        )
        closing = CloseRecord(
            id=pk, finished=time.time(), outcome="completed", status=200, answer=answer
        )
        write_to_database([ExchangeRecords(opening, [Chunk(id=pk, reads=reads)], closing)])
    stored = (
        Part.objects.aggregate(n=Sum(Length("data")))["n"]
        + Transcript.objects.aggregate(n=Sum(Length("manifest")))["n"]
    )
    streams = Transcript.objects.aggregate(n=Sum(Length("stream")))["n"]
    Transcript.objects.update(stream=None)  # the rest is what the JSON above would take
    retention.free_space(full=True)
    disk = on_disk() - empty
    assert table_sizes.sizes()
    return [
        f"{first // 1000}-{last // 1000} KB",
        f"{plain / 1e6:.2f} MB",
        f"{stored / 1e3:.0f} KB",
        f"{plain / stored:.1f}",
        f"{disk / 1e3:.0f} KB",
        f"{plain / disk:.1f}",
        f"{as_jsonb(documents) / disk:.1f}" if connection.vendor == "postgresql" else "",
        f"{(stored + streams) / 1e3:.0f} KB",
        f"{four / (stored + streams):.1f}",
    ]


def as_jsonb(documents: list[bytes]) -> int:
    """Return the bytes of a table with one jsonb column for each body and response."""
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
    from proxy.ledger.database import table_sizes

    found = {size.table: size.bytes for size in table_sizes.sizes()}
    return found["proxy_part"] + found["proxy_transcript"]


if __name__ == "__main__":
    main()
