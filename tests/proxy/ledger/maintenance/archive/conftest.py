"""A ledger with requests of two months, of two teams, and of three keys."""

from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import call_command

from proxy.ledger.posting.ledger_writer import write_to_database
from proxy.models import Exchange, Transcript
from tests.proxy.admin import factories

JUNE = datetime(2026, 6, 28, 12, 0, tzinfo=UTC)


@pytest.fixture
def ledger(settings, tmp_path, monkeypatch):
    """Ten requests, one each 12 hours: five of June and five of July. No transcript is stored."""
    factories.price()
    ada, ben = factories.key("ada")[0], factories.key("ben")[0]
    batch = []
    for number in range(10):
        is_failed = number % 4 == 3
        records = factories.exchange_records(
            at=JUNE + timedelta(hours=12 * number),
            team="research" if number % 3 == 2 else "platform",
            key=ben if number % 2 else ada,
            with_content=False,
            opening={
                "session_id": f"session-{number // 4}",
                "tags": {"app": "night%ly", "größe": str(number)} if number % 2 else {},
                "betas": ["tools-2026", "größe"] if number % 5 == 0 else [],
                "ip": "10.0.0.1" if number % 2 else None,
            },
            closing={
                "outcome": "upstream_error" if is_failed else "completed",
                "error_message": "100% of 'quoted' \\ text" if is_failed else "",
                "attempts": [{"ms": 1}, {"ms": 2}] if number % 5 == 1 else [{"ms": 1}],
                "tool_calls": 1 if number % 3 == 0 else 0,
                "tool_names": ["Bash"] if number % 3 == 0 else [],
                "notes": [{"path": "top_k", "fate": "dropped"}] if number % 4 == 1 else [],
            },
        )
        batch.append(records)
    write_to_database(batch)
    assert not Transcript.objects.exists()
    return Exchange.objects.order_by("created")


@pytest.fixture
def archive(tmp_path):
    def archive(*options, to=tmp_path / "archive"):
        call_command("archivemonths", "--to", str(to), *options, verbosity=0)

    return archive
