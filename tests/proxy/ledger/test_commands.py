"""The management commands of the ledger."""

import csv
import io
import json
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, transaction

from proxy.conf import conf
from proxy.ledger.journal.records import Chunk
from proxy.ledger.maintenance import verifier
from proxy.ledger.posting.ledger_writer import ExchangeRecords, write_to_database
from proxy.management.commands.verifyledger import FILE, saved_steps
from proxy.models import (
    Exchange,
    HashChainLink,
    Part,
    Price,
    State,
    Transcript,
    UsageQuarterHour,
)
from tests.for_each import for_each
from tests.proxy.ledger.amending import set_cost

from .database.tables import renamed
from .factories import NOON, answer, body, closing, exchange_id, opening
from .subprocess_driver import ROOT

pytestmark = pytest.mark.django_db

REQUEST_ROW = [
    "id",
    "created_at",
    "finished_at",
    "key",
    "user",
    "team",
    "session_id",
    "agent_id",
    "parent_agent_id",
    "client",
    "endpoint",
    "api_version",
    "betas",
    "model_requested",
    "model_upstream",
    "upstream",
    "upstream_request_id",
    "stream",
    "status",
    "error",
    "stop_reason",
    "attempts",
    "retry_of",
    "input_tokens",
    "cache_read_input_tokens",
    "cache_write_5m_tokens",
    "cache_write_1h_tokens",
    "output_tokens",
    "reasoning_tokens",
    "web_search_requests",
    "usage_source",
    "cost_usd",
    "cost_parts",
    "price_version",
    "priced",
    "ttft_ms",
    "total_ms",
    "upstream_ms",
    "overhead_ms",
    "output_tps",
    "request_bytes",
    "response_bytes",
    "tool_calls",
    "tool_names",
    "has_images",
    "has_thinking",
    "message_count",
    "tags",
    "traceparent",
    "ip",
    "aborted_by_client",
    "redacted",
    "outcome",
]


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def finding(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command(*arguments, stdout=out)
    except SystemExit as exc:
        return int(exc.code or 0), out.getvalue()
    return 0, out.getvalue()


@pytest.fixture
def ledger(team) -> None:
    Price.objects.create(model="gpt-5.2", since="2026-01-01", input="1.25", output="10")
    write_to_database(
        [
            ExchangeRecords(opening(1, user="ada@example.com"), [], closing(1)),
            ExchangeRecords(
                opening(2, user_agent="=cmd()"),
                [],
                closing(2, outcome="client_gone", usage={}, error_type="api_error"),
            ),
            ExchangeRecords(opening(3), []),
        ]
    )


def exported(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("exportledger", *arguments).splitlines()]


def test_export_has_every_field_of_the_request_row(ledger) -> None:
    lines = exported()

    assert [line["id"] for line in lines] == [exchange_id(1), exchange_id(2)]
    assert set(REQUEST_ROW) <= set(lines[0])
    assert lines[0]["outcome"] == "completed"
    assert lines[0]["cost_usd"] == "0.00557"
    assert lines[0]["user"] == {"id": "ada@example.com", "email": "ada@example.com"}
    assert lines[0]["created_at"] == "2026-11-21T12:00:01.000Z"
    assert lines[1]["cost_usd"] is None
    assert lines[1]["usage_source"] == "none"
    assert lines[1]["aborted_by_client"] is True
    assert lines[1]["error"]["type"] == "api_error"


def test_export_contains_open_rows_only_with_open(ledger) -> None:
    assert len(exported("--open")) == 3
    assert [line["outcome"] for line in exported("--open")][2] is None


def test_export_takes_half_open_ranges(ledger) -> None:
    second = "2026-11-21T12:00:02Z"

    assert [line["id"] for line in exported("--until", second)] == [exchange_id(1)]
    assert [line["id"] for line in exported("--since", second)] == [exchange_id(2)]


@for_each("command", ["exportledger", "reprice"])
def test_an_empty_time_range_is_misuse(command) -> None:
    with pytest.raises(CommandError, match="--until 2026-11-21T00:00Z is not later") as refused:
        run(command, "--since", "2026-11-21", "--until", "2026-11-21")

    assert refused.value.returncode == 2


def test_csv_has_one_header_and_no_formula(ledger) -> None:
    rows = list(csv.DictReader(io.StringIO(run("exportledger", "--format", "csv"))))

    assert [row["id"] for row in rows] == [exchange_id(1), exchange_id(2)]
    assert rows[0]["key.name"] == "ada-laptop"
    assert rows[1]["client.user_agent"] == "'=cmd()"
    assert rows[1]["cost_usd"] == ""


def test_an_empty_ledger_exports_only_a_header() -> None:
    assert len(run("exportledger", "--format", "csv").splitlines()) == 1
    assert run("exportledger") == ""


def test_verify_reports_no_finding_or_the_changed_row(ledger) -> None:
    assert finding("verifyledger")[0] == 0
    Exchange.objects.filter(pk=exchange_id(1)).update(output_tokens=0)

    code, text = finding("verifyledger", "--json")

    assert code == 1
    assert {f["where"] for f in json.loads(text)["findings"] if f["what"] == "row"} == {
        exchange_id(1)
    }


@pytest.fixture
def damaged(ledger) -> dict[str, Any]:
    """Damage a row, a link, the sums and the bodies; return the result of --no-bodies."""
    Exchange.objects.filter(pk=exchange_id(1)).update(user_agent="changed")
    Exchange.objects.filter(pk=exchange_id(3)).update(
        state=State.CLOSED, finished=datetime.now(UTC), outcome="completed"
    )
    Part.objects.update(data=b"damaged")
    result: dict[str, Any] = json.loads(finding("verifyledger", "--json", "--no-bodies")[1])
    assert result["links"] == 2
    assert {each["what"] for each in result["findings"]} == {"row", "unsealed", "sum"}
    return result


def test_an_interrupted_verification_is_resumed_with_its_options(damaged) -> None:
    verification = saved_steps(verifier.Checkpoint(bodies=False), conf.data_dir / FILE, save_s=0)
    with renamed(UsageQuarterHour), pytest.raises(DatabaseError), transaction.atomic():
        list(verification)

    code, text = finding("verifyledger", "--resume", "--json")

    assert code == 1
    assert json.loads(text) == damaged
    with pytest.raises(CommandError, match="there is no interrupted verification to resume"):
        run("verifyledger", "--resume")


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
def test_a_resumed_verification_repeats_no_step_and_no_finding(damaged, steps) -> None:
    """The steps: two links, the end of the chain, the rows of a month, the sums of a day."""
    verification = saved_steps(
        verifier.Checkpoint(bodies=False), conf.data_dir / FILE, batch_size=1, save_s=0
    )
    assert len([*islice(verification, steps)]) == steps
    # The first step has found this row; repeated, it would not find it any more.
    Exchange.objects.filter(pk=exchange_id(1)).update(user_agent="")

    code, text = finding("verifyledger", "--resume", "--json")

    assert code == 1
    assert json.loads(text) == damaged


def test_a_month_is_verified_alone(ledger) -> None:
    Exchange.objects.filter(pk=exchange_id(1)).update(output_tokens=0)
    linked = HashChainLink.objects.get(exchange_id=exchange_id(1)).day

    assert finding("verifyledger", "--month", f"{linked:%Y-%m}")[0] == 1
    code, text = finding("verifyledger", "--month", "2001-01")
    assert (code, text.splitlines()[-1]) == (0, "0 links checked: everything is as it was written")
    assert "not proven: the links of other days" in text


def test_settle_closes_old_open_rows_once_and_a_later_close_record_wins(ledger) -> None:
    Exchange.objects.filter(pk=exchange_id(3)).update(
        created=datetime.now(UTC) - timedelta(hours=3)
    )

    first = json.loads(run("settleorphans", "--json", "--older-than", "2h"))
    again = json.loads(run("settleorphans", "--json", "--older-than", "2h"))

    row = Exchange.objects.get(pk=exchange_id(3))
    assert (first["rows_closed"], again["rows_closed"]) == (1, 0)
    assert (row.state, row.outcome, row.detail) == ("closed", "interrupted", "settled")
    # Journals of other tests were drained too, so only the difference matters.
    counted = sum(UsageQuarterHour.objects.values_list("requests", flat=True))
    assert counted == Exchange.objects.count()
    write_to_database([ExchangeRecords(opening(3), [], closing(3))])
    row.refresh_from_db()
    assert row.outcome == "completed"
    assert sum(UsageQuarterHour.objects.values_list("requests", flat=True)) == counted


def test_restore_from_a_backup_older_than_the_journals_is_a_finding(ledger) -> None:
    (conf.data_dir / "journal-0").mkdir()
    assert json.loads(run("settleorphans", "--json", "--restore", "24h"))["records_restored"] == 0

    with pytest.raises(
        CommandError, match=r"of 24 hours only: requests from .* may be missing"
    ) as found:
        run("settleorphans", "--json", "--restore", "7d")

    assert found.value.returncode == 1


def test_prune_deletes_expired_transcripts(ledger, team) -> None:
    late = datetime.fromtimestamp(NOON, UTC) + timedelta(days=team.retention_days + 1)

    result = json.loads(run("pruneledger", "--json", "--now", late.isoformat()))

    assert result["transcripts"] == 3
    assert not Transcript.objects.exists()
    assert Exchange.objects.count() == 3
    output = run("pruneledger", "--sizes")

    assert all(name in output for name in ("proxy_exchange", "together", "journals (files)"))


def test_a_closed_output_pipe_is_not_an_error(driver) -> None:
    """``manage.py exportledger | head``: no traceback, and the exit code that shells expect."""
    export = subprocess.Popen(  # noqa: S603 -- our own program
        [sys.executable, str(ROOT / "manage.py"), "exportledger", "--format", "csv"],
        env=driver.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    export.stdout.close()

    with export.stderr:
        assert export.stderr.read() == ""
    assert export.wait(30) == 128 + signal.SIGPIPE


def test_reprice_shows_before_it_changes(ledger) -> None:
    set_cost(exchange_id(1), 1)

    assert "1 request would change" in run("reprice", "--all", "--dry-run")
    assert Exchange.objects.get(pk=exchange_id(1)).cost_nanousd == 1
    assert "1 request changed" in run("reprice", "--all")
    assert Exchange.objects.get(pk=exchange_id(1)).cost_nanousd == 5_570_000


TARGET = {"upstream": "openai", "model": "gpt-5.2", "dialect": "chat", "profile": "generic"}
CHAT = (
    b'data: {"id":"c1","model":"gpt-5.2","choices":[{"index":0,"delta":{"content":"Paris."}}]}\n\n'
    b'data: {"id":"c1","model":"gpt-5.2","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b"data: [DONE]\n\n"
)


def store_exchange(text: str) -> str:
    message = answer(text, stop_sequence=None)
    reads = Chunk(id=exchange_id(9), reads=[(1.0, CHAT[:50]), (2.0, CHAT[50:])])
    records = ExchangeRecords(
        opening(9, body=body("What is the capital of France?", stream=True)),
        [reads],
        closing(9, target=TARGET, answer=message),
    )
    write_to_database([records])
    return exchange_id(9)


def test_replay_shows_the_response_of_the_current_translator(team) -> None:
    pytest.importorskip("translator.message_stream.events_to_message")
    request_id = store_exchange("Lyon.")

    code, text = finding("replay", request_id)

    assert code == 1
    assert '-      "text": "Lyon."' in text
    assert '+      "text": "Paris."' in text
    assert "event: message_stop" in finding("replay", request_id, "--events")[1]


def test_replay_shows_the_error_of_an_upstream(team) -> None:
    error = Chunk(id=exchange_id(9), reads=[(1.0, b"<p>no</p>")], status=502)
    closed = closing(9, target=TARGET, outcome="upstream_error", answer=None)
    write_to_database([ExchangeRecords(opening(9, target=TARGET), [error], closed)])

    assert run("replay", exchange_id(9), "--raw") == "# attempt 1, openai: status 502\n<p>no</p>\n"
    with pytest.raises(CommandError, match="answered with status 502: nothing to replay") as caught:
        run("replay", exchange_id(9))
    assert caught.value.returncode == 2


def test_replay_without_a_transcript_is_misuse() -> None:
    with pytest.raises(CommandError, match="no transcript is stored") as caught:
        run("replay", "req_unknown")

    assert caught.value.returncode == 2


def test_every_command_has_an_example() -> None:
    for name in (
        "exportledger",
        "verifyledger",
        "settleorphans",
        "pruneledger",
        "replay",
        "reprice",
    ):
        with pytest.raises(SystemExit):
            call_command(name, "--help")


def test_parts_have_their_uncompressed_size(ledger) -> None:
    assert all(part.size > 0 for part in Part.objects.all())


@pytest.mark.django_db
def test_a_backup_into_a_missing_folder_is_misuse(tmp_path: Path) -> None:
    with pytest.raises(CommandError) as refused:
        call_command("backup", tmp_path / "nowhere" / "copy.sqlite3")

    assert refused.value.returncode == 2
    assert not (tmp_path / "nowhere").exists()


def test_only_a_folder_of_backups_has_a_number_to_keep(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="--keep is 1 or more, and needs a folder") as refused:
        call_command("backup", tmp_path / "copy.sqlite3", "--keep", "3")

    assert refused.value.returncode == 2
