"""How long retention takes: transcripts past their time, deleted in batches beside a busy ledger.

python benchmarks/ledger_retention.py --transcripts 200000
python benchmarks/ledger_retention.py --transcripts 200000 --postgresql   # a private server
"""

import argparse
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import ledger_world

OLD = timedelta(days=100)  # past the 90 days of the team


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transcripts", type=int, default=200_000)
    parser.add_argument("--postgresql", action="store_true", help="start a server for this run")
    options = parser.parse_args()
    url = ledger_world.private_postgres("shared_buffers=512MB") if options.postgresql else ""
    ledger_world.set_up(url)
    fill(options.transcripts)
    delete()


def fill(count: int) -> None:
    """One exchange by the ledger's own hand, the others its copies."""
    from django.db import connection

    from proxy.models import Exchange, Team, Transcript
    from proxy.record import posting
    from tests.proxy.record.making import closing, opening

    Team.objects.create(name="platform", retention_days=90)
    old = datetime.now(UTC) - OLD
    posting.post([posting.Story(opening(1, created=old.timestamp()), [], closing(1))])
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
            cursor.execute(copied(model, key, series), [first])
    print(f"{Transcript.objects.count():,} transcripts on {connection.vendor}")


def copied(model: Any, key: str, series: str) -> str:
    columns = [field.column for field in model._meta.concrete_fields]  # noqa: SLF001 - documented
    names = ", ".join(f'"{name}"' for name in columns)
    values = ", ".join("'req_00' || n" if name == key else f't."{name}"' for name in columns)
    table = model._meta.db_table  # noqa: SLF001 - documented
    return (
        f"INSERT INTO {table} ({names}) SELECT {values} FROM {table} t, ({series}) s "
        f"WHERE t.{key} = %s"
    )


def delete() -> None:
    from proxy.models import Exchange, Transcript
    from proxy.record.retention import prune_transcripts

    began, longest, gone = time.perf_counter(), 0.0, 0
    last = began
    for size in prune_transcripts(datetime.now(UTC)):
        now = time.perf_counter()
        gone, longest, last = gone + size, max(longest, now - last), now
    took = time.perf_counter() - began
    print(
        f"{gone:,} deleted in {took:.1f} s: {gone / took:,.0f} a second, "
        f"longest transaction {longest * 1000:.0f} ms; "
        f"{Transcript.objects.count()} left, {Exchange.objects.count():,} rows stay"
    )


if __name__ == "__main__":
    main()
