"""Measure retention: delete expired transcripts in batches.

python -m benchmarks.ledger.retention --transcripts 200000
python -m benchmarks.ledger.retention --transcripts 200000 --postgresql   # a private server

It also prints the CPU time of this process and of its database process, which depends less on other
load.
"""

import argparse
import statistics
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.ledger import world

OLD = timedelta(days=100)  # older than the 90 days of the team
WITHIN = timedelta(days=9)  # between the oldest and the newest: all are expired


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transcripts", type=int, default=200_000)
    parser.add_argument("--postgresql", action="store_true", help="start a server for this run")
    options = parser.parse_args()
    url = world.private_postgres("shared_buffers=512MB") if options.postgresql else ""
    world.set_up(url)
    fill(options.transcripts)
    delete(world.server_process() if url else None)


def fill(count: int) -> None:
    """Write one exchange with the ledger and insert copies of it."""
    from django.db import connection

    from proxy.ledger.posting import ledger_writer
    from proxy.models import Exchange, Team, Transcript
    from tests.proxy.ledger.factories import closing, opening

    Team.objects.create(name="platform", retention_days=90)
    old = datetime.now(UTC) - OLD
    ledger_writer.write_to_database(
        [ledger_writer.ExchangeRecords(opening(1, created=old.timestamp()), [], closing(1))]
    )
    first = Exchange.objects.get().pk
    Transcript.objects.update(created=old)
    series = (
        f"SELECT value AS n FROM generate_series(2, {count}) AS value"
        if connection.vendor == "postgresql"
        else f"WITH RECURSIVE s(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM s WHERE n < {count}) "
        "SELECT n FROM s"
    )
    with connection.cursor() as cursor:
        for model, key in ((Exchange, "id"), (Transcript, "exchange_id")):
            cursor.execute(copied(model, key, series, WITHIN / count), [first])
    print(f"{Transcript.objects.count():,} transcripts on {connection.vendor}")


def copied(model: Any, key: str, series: str, apart: timedelta) -> str:
    from django.db import connection

    seconds = f"n * {apart.total_seconds()}"
    later = (
        f"""t."created" + {seconds} * interval '1 second'"""
        if connection.vendor == "postgresql"
        else f"""strftime('%Y-%m-%d %H:%M:%f', t."created", '+' || ({seconds}) || ' seconds')"""
    )
    changed = {key: "'req_00' || n", "created": later}
    columns = [field.column for field in model._meta.concrete_fields]  # noqa: SLF001 - documented
    names = ", ".join(f'"{name}"' for name in columns)
    values = ", ".join(changed.get(name) or f't."{name}"' for name in columns)
    table = model._meta.db_table  # noqa: SLF001 - documented
    return (
        f"INSERT INTO {table} ({names}) SELECT {values} FROM {table} t, ({series}) s "
        f"WHERE t.{key} = %s"
    )


def delete(server: int | None) -> None:
    from proxy.ledger.maintenance.retention import prune_transcripts
    from proxy.models import Exchange, Transcript

    gone, batches = 0, []  # milliseconds: elapsed, CPU
    last = now = (time.perf_counter() * 1000, world.cpu_ms(server))
    for size in prune_transcripts(datetime.now(UTC)):
        now = (time.perf_counter() * 1000, world.cpu_ms(server))
        batches.append((now[0] - last[0], now[1] - last[1]))
        gone, last = gone + size, now
    print(f"{gone:,} deleted; {Transcript.objects.count()} left, {Exchange.objects.count():,} rows")
    for name, took in zip(
        ("on the clock", "of a processor"), zip(*batches, strict=True), strict=True
    ):
        print(
            f"{name}: {sum(took) / 1000:.1f} s, {gone / sum(took) * 1000:,.0f} a second, "
            f"transactions of {statistics.median(took):.0f} ms, the longest {max(took):.0f} ms"
        )


if __name__ == "__main__":
    main()
