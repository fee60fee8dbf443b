"""Record readings of transcripts, and require reasons for those of other people's transcripts.

Each page, API view and command that shows text of conversations calls ``record_reading`` before it
shows the text, ``record_search`` before it searches, or ``record_export`` before it exports the
ledger. With ``BRIDGE_READING_NEEDS_REASON=1`` they raise ReasonRequired if the text is not the
reader's own and no reason was given.

A reason is given in the header ``HEADER``, in a form of the admin (``remember_reason``), or as an
option of a command.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.utils.timezone import now

from proxy.audit_log import Action, current_request, record
from proxy.conf import conf
from proxy.models import Exchange
from proxy.models.audit import MAX_REASON
from proxy.models.ledger_names import person_ids, team_ids

from .row_permissions import Reader, is_own

HEADER: Final = "X-Reading-Reason"
MIN_REASON: Final = 5
"""Minimum characters of a reason that are neither spaces nor invisible."""

REMEMBERED_FOR: Final = timedelta(minutes=30)
MAX_REMEMBERED: Final = 50
"""Maximum objects whose reason is remembered for a signed-in user; the oldest are forgotten."""

REASONS: Final = "reading_reasons"
"""The name in Django's session of the list of ``[kind, id, reason, end as Unix time]``."""


FOUND_BY: Final = "passages found by the search for "
SEARCHED_FOR: Final = "for "
"""The starts of the details of entries about a search; the searched words follow, quoted."""
LEDGER_AS: Final = "ledger as "
"""The start of the detail of an entry about an export of the ledger; the format follows."""
QUOTED: Final = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")


class Kind(StrEnum):
    """For what a reason is given."""

    REQUEST = "request"
    SESSION = "session"
    SEARCH = "search"
    LEDGER = "ledger"


@dataclass(frozen=True, slots=True)
class ReadObject:
    """What is read: a request or session by its id, a search by its words, or the whole ledger."""

    kind: Kind
    id: str = ""


class ReasonRequired(PermissionDenied):
    """Reading ``read`` needs a reason, and none was given that has the required length."""

    def __init__(self, read: ReadObject) -> None:
        self.read = read
        super().__init__(
            "reading transcripts of other people needs a reason of "
            f"{MIN_REASON} to {MAX_REASON} characters in the header {HEADER}"
        )


def needs_reason(reader: Reader, row: Exchange) -> bool:
    """Return whether this reader must give a reason for reading the transcript of the request."""
    return conf.reading_needs_reason and not _is_own(reader, row)


def _is_own(reader: Reader, row: Exchange) -> bool:
    """Return whether the signed-in reader, or the very key that reads, sent the request.

    The user of a key does not count: whoever may make keys can make one in another person's name.
    """
    return is_own(reader, key_id=row.key_id, user=row.user)


def first_words(reader: Reader, row: Exchange) -> str:
    """Return the user's first words, the title of a session; "" if reading them needs a reason."""
    return "" if needs_reason(reader, row) else row.prompt or row.preview


def record_reading(
    reader: Reader,
    action: Action,
    rows: Sequence[Exchange],
    *,
    detail: str,
    read: ReadObject | None = None,
    reason: str = "",
) -> None:
    """Record that the reader reads or exports the transcripts of the rows.

    ``read`` is what the reader opened: by default the only row. There is one entry for each user
    and team among the rows, because clients choose session ids, so one session may have requests of
    several users. ``reason``: the option of a command. Raises ReasonRequired.
    """
    objects = [read] if read else _objects_of(rows[0])
    needed = any(needs_reason(reader, row) for row in rows)
    given = _require_reason(objects, reason, needed=needed)
    newest = {(row.user, row.team): row for row in rows}
    for row in newest.values():
        record(action, row, detail=detail, reason=given)


def _objects_of(row: Exchange) -> list[ReadObject]:
    """Return the request and its session, whose page shows the same texts."""
    request, session = ReadObject(Kind.REQUEST, row.pk), row.session_id
    return [request, *([ReadObject(Kind.SESSION, session)] if session else [])]


def record_search(
    reader: Reader, words: str, *, detail: str, user: str, team: str, reason: str = ""
) -> None:
    """Record a search for the words in transcripts; ``user`` and ``team`` are names or empty.

    A reader who can find only the reader's own texts needs no reason. Raises ReasonRequired.
    """
    finds_others = reader.may_report and not (user and person_ids(user) == [reader.user])
    read = ReadObject(Kind.SEARCH, words)
    needed = conf.reading_needs_reason and finds_others
    given = _require_reason([read], reason, needed=needed)
    for subject in (user and person_ids(user)) or [user]:
        for one in (team and team_ids(team)) or [team]:
            record(Action.SEARCH, detail=detail, subject=subject, team=one, reason=given)


def searched_words(detail: str) -> str:
    """Return the words that an entry about a search quotes; "" for another entry."""
    start = next((each for each in (FOUND_BY, SEARCHED_FOR) if detail.startswith(each)), None)
    if start is None:
        return ""
    quoted = QUOTED.match(detail, len(start))
    return quoted[0] if quoted else detail[len(start) :]


def record_found(reader: Reader, words: str, rows: Iterable[Exchange], *, reason: str = "") -> None:
    """Record that a search showed passages of these requests to a reader who did not send them."""
    others = [row for row in rows if not _is_own(reader, row)]
    if others:
        read = ReadObject(Kind.SEARCH, words)
        detail = f"{FOUND_BY}{words!r}"
        record_reading(reader, Action.READ, others, detail=detail, read=read, reason=reason)


def record_export(file_format: str, *, reason: str = "") -> None:
    """Record an export of the whole ledger, whose rows have the first words of each request.

    Raises ReasonRequired.
    """
    read = ReadObject(Kind.LEDGER)
    given = _require_reason([read], reason, needed=conf.reading_needs_reason)
    record(Action.EXPORT, detail=f"{LEDGER_AS}{file_format}", reason=given)


def _require_reason(objects: Sequence[ReadObject], option: str, *, needed: bool) -> str:
    """Return the reason given for one of the objects; "" if none was given and none is needed."""
    request = current_request()
    given = option if request is None else _header_of(request) or _remembered(request, objects)
    if needed and not is_reason(given):
        raise ReasonRequired(objects[0])
    return given


def is_reason(text: str) -> bool:
    """Return whether the text has the length of a reason; invisible characters do not count."""
    visible = sum(char.isprintable() and not char.isspace() for char in text)
    return visible >= MIN_REASON and len(text) <= MAX_REASON


def _header_of(request: HttpRequest) -> str:
    """Return the header as text. HTTP servers decode it as Latin-1, but clients send UTF-8."""
    value: str = request.headers.get(HEADER, "").strip()
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def remember_reason(request: HttpRequest, read: ReadObject, reason: str) -> None:
    """Remember the reason of the signed-in user for this object, for ``REMEMBERED_FOR``."""
    others = [one for one in _valid_reasons(request) if one[:2] != [read.kind, read.id]]
    until = (now() + REMEMBERED_FOR).timestamp()
    newest = [*others, [str(read.kind), read.id, reason, until]][-MAX_REMEMBERED:]
    request.session[REASONS] = newest


def _remembered(request: HttpRequest, objects: Sequence[ReadObject]) -> str:
    reasons = {(kind, ident): reason for kind, ident, reason, _ in _valid_reasons(request)}
    found = (reasons.get((str(read.kind), read.id), "") for read in objects)
    return next(filter(None, found), "")


def _valid_reasons(request: HttpRequest) -> list[Any]:
    """Return the remembered reasons that are still valid, oldest first."""
    at = now().timestamp()
    return [one for one in request.session.get(REASONS, []) if one[3] > at]
