"""Encrypt stored texts with the current body key; an interrupted run is continued by the next."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandParser

from proxy.audit_log import Action, record
from proxy.encryption.bodies import MissingBodyKey, has_key, key_ids
from proxy.ledger.maintenance import encrypt_bodies, retention
from proxy.management.base import FINDING, BridgeCommand
from proxy.management.rich_output import format_count, track
from proxy.models import SearchEntry
from proxy.secrets import ConfigError


class Command(BridgeCommand):
    help = (
        "Encrypt stored texts with the first key of BRIDGE_BODY_KEYS; exit 1 if a key is missing."
    )
    example = "manage.py encryptbodies   # the gateway may run; repeat it after an interruption"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--batch", type=int, default=100, help="requests in one transaction (default: 100)"
        )
        parser.add_argument(
            "--keep-space", action="store_true", help="do not free disk space afterwards"
        )
        parser.add_argument(
            "--full",
            action="store_true",
            help="free it with VACUUM FULL, which locks the tables (PostgreSQL)",
        )
        parser.add_argument(
            "--forget", metavar="KEY", help="only stop reporting that this key id is missing"
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["forget"]:
            self._forget(options["forget"])
            return
        if not has_key():
            raise ConfigError("BRIDGE_BODY_KEYS is not set, so there is no key to encrypt with")
        track("search index", encrypt_bodies.remove_search_index(), SearchEntry.objects.count())
        missing: Counter[str] = Counter()
        batch = options["batch"]
        total = encrypt_bodies.old_transcripts().count()
        transcripts = track(
            "transcripts", encrypt_bodies.encrypt_transcripts(missing, batch), total
        )
        total = encrypt_bodies.old_rows().count()
        rows = track("rows", encrypt_bodies.encrypt_rows(batch), total)
        parts = sum(retention.prune_parts(datetime.now(UTC)))
        encrypt_bodies.forget_unused_keys()
        if not options["keep_space"]:
            retention.free_space(full=options["full"])
        record(
            Action.RUN,
            detail=f"encrypted {transcripts} transcripts and {rows} rows with key {key_ids()[0]}",
        )
        result = {"transcripts": transcripts - missing.total(), "rows": rows, "parts": parts}
        if options["json"]:
            line = {**result, "missing_keys": missing}
            self.write_json(line)
        else:
            self._show(result, missing)
        if missing:
            raise SystemExit(FINDING)

    def _show(self, result: dict[str, int], missing: Counter[str]) -> None:
        counts = [format_count(count, name[:-1]) for name, count in result.items()]
        self.stdout.write(
            f"{counts[0]} and {counts[1]} encrypted with key {key_ids()[0]}, "
            f"{counts[2]} deleted; the purge deletes old parts of the last two hours later"
        )
        for key, count in missing.items():
            self.stdout.write(f"{format_count(count, 'transcript')}: {MissingBodyKey(key)}")

    def _forget(self, key: str) -> None:
        if key in key_ids() or not encrypt_bodies.forget_key(key):
            raise ConfigError(f"{key} is not the id of a missing key")
        record(Action.RUN, detail=f"key {key} is no longer reported as missing")
        self.stdout.write(f"key {key} is no longer reported as missing")
