"""Add the outcomes of new requests to ``SessionOutcomeDay``, each tool call once."""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from proxy.ledger.database.bulk_sql import select, write
from proxy.ledger.outcomes.environment import Environment, environment_of
from proxy.ledger.outcomes.extraction import Counts, TooLarge, Transcript, call_key
from proxy.ledger.transcripts.body_parts import Piece
from proxy.ledger.transcripts.encoding import Conversation
from proxy.models import CountedToolCall, SessionOutcomeDay, UsageBySessionDay

from . import rollups
from .exchange_columns import AnyRow, sanitise

logger = logging.getLogger(__name__)

NOT_COUNTS: Final = frozenset({"usage", "team", "start", "repository", "branch"})
COUNTS: Final = tuple(
    each.name
    for each in SessionOutcomeDay._meta.concrete_fields  # noqa: SLF001 -- Django's documented model API
    if each.name not in NOT_COUNTS
)


@dataclass(slots=True)
class _Request:
    """A new request: its calls by key, and the counts to add to the row of its session and day."""

    row: AnyRow
    transcript: Transcript | None
    environment: Environment
    calls: dict[bytes, Any] = field(default_factory=dict)


def add(rows: Iterable[AnyRow], conversations: Mapping[str, Conversation]) -> None:
    """Add the outcomes of new ledger rows. The caller has the ledger lock.

    A request without a stored transcript is counted as unread, so that its figures are missing.
    """
    requests = [_read(row, conversations.get(row.pk)) for row in rows]
    if not requests:
        return
    known = _known(key for one in requests for key in one.calls)
    counted: dict[bytes, AnyRow] = {}
    days: dict[bytes, _Day] = {}
    for one in requests:
        key = rollups.key_of(UsageBySessionDay, one.row)
        day = days.setdefault(key, _Day(key, one.row))
        day.add_environment(one.environment)
        day.counts["requests_read" if one.transcript else "requests_unread"] += 1
        new = {key: call for key, call in one.calls.items() if key not in known}
        known |= new.keys()
        counted |= dict.fromkeys(new, one.row)
        for call in new.values():
            day.add_call(one, call)
    _count_files(days.values(), known, counted)
    _write(days, counted)


@dataclass(slots=True)
class _Day:
    """The outcomes to add to one row."""

    key: bytes
    row: AnyRow
    counts: Counts = field(default_factory=Counter)
    repository: str = ""
    branch: str = ""
    files: dict[bytes, AnyRow] = field(default_factory=dict)

    def add_environment(self, found: Environment) -> None:
        self.repository = found.repository or self.repository
        self.branch = found.branch or self.branch

    def add_call(self, request: _Request, call: Any) -> None:
        if request.transcript is None:
            return
        try:
            outcome = request.transcript.outcome(call)
        except Exception:  # the ledger's rows must be written, whatever an agent sent
            logger.exception("outcomes: a tool call of %s could not be read", request.row.pk)
            return
        self.counts.update(outcome.counts)
        for path in outcome.paths:
            self.files.setdefault(_file_key(request.row, path), request.row)


def _read(row: AnyRow, one: Conversation | None) -> _Request:
    """Find the tool calls of a request. Never raises for any body that a client sends."""
    if one is None or one.request is None:
        return _Request(row, None, Environment())
    try:
        system = one.request.fields.get("system") or []
        blocks = [system] if isinstance(system, Piece) else system
        environment = environment_of(blocks, one.messages)
        transcript = Transcript(one.messages, row.new_from or 0)
        calls = {
            call_key(call, row.team, row.key_id, row.session_id): call
            for call in transcript.calls
            if call.kind
        }
    except TooLarge:
        return _Request(row, None, Environment())
    except Exception:  # as above
        logger.exception("outcomes: the tool calls of %s could not be read", row.pk)
        return _Request(row, None, Environment())
    environment = Environment(*(sanitise(name) for name in environment))
    return _Request(row, transcript, environment, calls)


def _file_key(row: AnyRow, path: str) -> bytes:
    """Return the digest of a file in its session; without a session, in a day of its key."""
    session = row.session_id or f"{row.key_id} {row.created:%Y-%m-%d}"
    identity = repr((row.team, session, path))
    return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).digest()[:16]


def _known(keys: Iterable[bytes]) -> set[bytes]:
    found = select(CountedToolCall, ("id",), "id", list(dict.fromkeys(keys)))
    return {bytes(key) for (key,) in found}


def _count_files(days: Iterable[_Day], known: set[bytes], counted: dict[bytes, AnyRow]) -> None:
    """Count each edited file once in its session."""
    known = known | _known(key for day in days for key in day.files)
    for day in days:
        for key, row in day.files.items():
            if key not in known:
                known.add(key)
                counted[key] = row
                day.counts["files_edited"] += 1


def _write(days: Mapping[bytes, _Day], counted: Mapping[bytes, AnyRow]) -> None:
    write(
        CountedToolCall,
        [{"id": key, "team": row.team, "created": row.created} for key, row in counted.items()],
    )
    before = {
        bytes(key): (repository, branch)
        for key, repository, branch in select(
            SessionOutcomeDay, ("usage_id", "repository", "branch"), "usage_id", list(days)
        )
    }
    lines = []
    for key, day in days.items():
        repository, branch = before.get(key, ("", ""))
        lines.append(
            {
                "usage_id": key,
                "team": day.row.team,
                "start": rollups.start_of(UsageBySessionDay, day.row.created),
                "repository": day.repository or repository,
                "branch": day.branch or branch,
                **dict.fromkeys(COUNTS, 0),
                **day.counts,
            }
        )
    write(SessionOutcomeDay, lines, added=COUNTS, replaced=("repository", "branch"))
