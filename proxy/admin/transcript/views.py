"""The page of one exchange: its conversation, its four bodies, a replay, and its downloads.

Stored text may be hostile: templates autoescape all of it, the page has a strict CSP, and bodies
are served as text/plain or as attachments. Each access is recorded in the audit log.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from proxy.admin.core.csp_middleware import BARE_CSP, ArchivedPage, set_security_headers
from proxy.admin.core.exchange_text import session_url
from proxy.admin.core.pages import (
    READ_RAW,
    READ_TRANSCRIPT,
    choice_links,
    page,
    require_reader,
    text_mode,
    text_mode_links,
    whole_number,
)
from proxy.audit_log import Action
from proxy.ledger.archive.reading import archived_month_of
from proxy.ledger.transcripts import storage
from proxy.ledger.transcripts.session_diff import Addition, additions
from proxy.models import Exchange
from proxy.permissions.readings import record_reading
from proxy.permissions.row_permissions import Reader, visible_exchanges

from .conversation import read_conversation
from .export import ExportedRequest, download_response, jsonl_lines
from .header import facts, header_context
from .media import media_response
from .tabs import (
    SHOWN_CHARS,
    TITLES,
    TranscriptBodies,
    curl_command,
    rebuild_upstream_request,
    replay_result,
    sent_frames,
)
from .truncation import dump_json, printable

TABS: Final[Mapping[str, str]] = {
    "conversation": "Conversation",
    "sides": "Side by side",
    **TITLES,
    "replay": "Replay",
    "record": "Record",
}
RAW_TABS: Final = frozenset({"sides", *TITLES, "replay"})
DOWNLOADS: Final[Mapping[str, str]] = {
    **TITLES,
    "transcript": "Transcript",
    "session": "Transcript in the format of Claude Code",
}
"""Name of each download in the URL, and its title."""


@require_safe
def transcript_view(request: HttpRequest, exchange_id: str) -> HttpResponse:
    """Show the transcript page. ``?tab=`` selects the tab, ``?from=`` the first turn shown."""
    reader = require_reader(request)
    exchange = find_exchange(reader, exchange_id)
    tab = request.GET.get("tab", "conversation")
    if tab not in TABS:
        raise Http404("no such tab")
    may_read = request.user.has_perm(READ_TRANSCRIPT)
    may_read_raw = may_read and request.user.has_perm(READ_RAW)
    if tab in RAW_TABS and not may_read_raw:
        raise PermissionDenied
    stored, fault = None, None
    if may_read and tab != "record":
        stored, fault = _read_transcript(exchange.pk)
    context = {}
    if stored is not None:
        record_reading(reader, Action.READ, [exchange], detail=f"tab {TABS[tab].lower()}")
        bodies = TranscriptBodies(stored)
        if tab == "conversation":
            context = _conversation_context(request, reader, stored, exchange)
        elif tab == "sides":
            context = {"panes": bodies.side_by_side()}
        elif tab == "replay":
            context = {"replay": replay_result(bodies)}
        else:
            context = {"pane": bodies.pane(tab)}
    previous_id, next_id = _neighbors(reader, exchange)
    tabs = {slug: one for slug, one in TABS.items() if slug not in RAW_TABS or may_read_raw}
    return page(
        request,
        "exchange/transcript",
        f"Request {exchange.pk}",
        opts=Exchange._meta,  # noqa: SLF001  # Django's admin templates need it
        exchange=exchange,
        **header_context(exchange),
        tabs=choice_links(tabs, tab, lambda slug: f"?tab={slug}"),
        tab=tab,
        may_read=may_read,
        stored=stored is not None,
        broken=fault is not None,
        missing_key=getattr(fault, "key_id", ""),
        previous_id=previous_id,
        next_id=next_id,
        session_url=session_url(exchange.session_id) if exchange.session_id else "",
        **context,
    )


def _conversation_context(
    request: HttpRequest, reader: Reader, stored: storage.StoredTranscript, exchange: Exchange
) -> dict[str, Any]:
    """Return the template context of the tab with the conversation."""
    start = whole_number(request.GET.get("from", ""), 6)
    mode = text_mode(request)
    command = ""
    if request.user.has_perm(READ_RAW):
        origin = request.build_absolute_uri("/").rstrip("/")
        command = curl_command(exchange, stored, origin)
    rejected = stored.conversation.raw_body  # a body that the gateway rejected
    return {
        "conversation": read_conversation(
            stored.request,
            stored.answer,
            start=start,
            new_from=exchange.new_from,
            render_markdown=mode == "rendered",
        ),
        "text_modes": text_mode_links(request, mode),
        "curl": command,
        "curl_needs_file": command.endswith((".json", ".txt")),
        "has_start": start is not None,
        "rejected_body": printable(rejected.text[:SHOWN_CHARS].decode(errors="replace"))
        if rejected
        else "",
        **_previous_request_context(reader, exchange),
    }


def _value_of(request: HttpRequest, reader: Reader, exchange_id: str) -> tuple[Exchange, Any]:
    """Return the request, and the value at the query's dotted path, as ``messages.2.content.0``.

    Raises Http404 or PermissionDenied.
    """
    exchange = find_exchange(reader, exchange_id)
    if not request.user.has_perm(READ_TRANSCRIPT):
        raise PermissionDenied
    stored = _require_transcript(exchange.pk)
    path = request.GET.get("path", "")
    value: Any = {**stored.request, "answer": stored.answer}
    for step in path.split(".") if path else ():
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, ValueError, TypeError):
            raise Http404(f"nothing at this path: {step[:40]!r}") from None
    return exchange, value


def part_view(request: HttpRequest, exchange_id: str) -> HttpResponse:
    """Return one whole content block as plain text, or as JSON if it has no text.

    The page shows only its beginning.
    """
    reader = require_reader(request)
    exchange, value = _value_of(request, reader, exchange_id)
    detail = f"block {request.GET.get('path', '')[:100]}"
    record_reading(reader, Action.READ, [exchange], detail=detail)
    text = value
    if isinstance(value, dict):
        texts = [value[name] for name in ("text", "thinking") if isinstance(value.get(name), str)]
        text = texts[0] if texts else value
    if not isinstance(text, str):
        text = dump_json(text, indent=2)
    response = HttpResponse(printable(text).encode(), content_type="text/plain; charset=utf-8")
    return set_security_headers(response, csp=BARE_CSP)


@require_safe
def media_view(request: HttpRequest, exchange_id: str) -> HttpResponse:
    """Return the file of an image or PDF block; the page loads it when a user opens the block."""
    reader = require_reader(request)
    exchange, block = _value_of(request, reader, exchange_id)
    response = media_response(block, exchange.pk)
    if response is None:
        raise Http404("no image or PDF at this path")
    detail = f"file {request.GET.get('path', '')[:100]}"
    record_reading(reader, Action.READ, [exchange], detail=detail)
    return response


def body_view(request: HttpRequest, exchange_id: str, side: str) -> HttpResponse:
    """Return one whole body of the exchange as a download."""
    reader = require_reader(request)
    exchange = find_exchange(reader, exchange_id)
    if not request.user.has_perms((READ_TRANSCRIPT, READ_RAW)):
        raise PermissionDenied
    if side not in DOWNLOADS:
        raise Http404("no such body")
    stored = _require_transcript(exchange.pk)
    body, ending = _download(side, stored, exchange)
    detail = f"download of the {DOWNLOADS[side].lower()}"
    record_reading(reader, Action.EXPORT, [exchange], detail=detail)
    return download_response(body, f"{exchange.pk}-{ending}")


def find_exchange(reader: Reader, exchange_id: str) -> Exchange:
    """Return the exchange with this id. Raise Http404 if it is archived or not visible."""
    exchange = visible_exchanges(reader).filter(pk=exchange_id).first()
    if exchange is None:
        if month := archived_month_of(exchange_id):
            raise ArchivedPage([month])
        raise Http404("no such request")
    return exchange


def _read_transcript(
    exchange_id: str,
) -> tuple[storage.StoredTranscript | None, storage.BrokenTranscript | None]:
    """Return the transcript, if one is stored, or else why it cannot be read."""
    try:
        return storage.read(exchange_id), None
    except storage.BrokenTranscript as fault:
        return None, fault


def _require_transcript(exchange_id: str) -> storage.StoredTranscript:
    """Return the transcript. Raises Http404 if none is stored, or if it cannot be read."""
    stored, fault = _read_transcript(exchange_id)
    if stored is None:
        raise Http404(str(fault or "no transcript is stored for this request"))
    return stored


def _neighbors(reader: Reader, exchange: Exchange) -> tuple[str, str]:
    """Return the ids of the previous and next request of the session, or "" if there is none."""
    if not exchange.session_id:
        return "", ""
    rows = visible_exchanges(reader).filter(session_id=exchange.session_id)
    ids = rows.values_list("pk", flat=True)
    before = ids.filter(created__lte=exchange.created, pk__lt=exchange.pk)
    after = ids.filter(created__gte=exchange.created, pk__gt=exchange.pk)
    return (
        before.order_by("-created", "-pk").first() or "",
        after.order_by("created", "pk").first() or "",
    )


def _previous_request_context(reader: Reader, exchange: Exchange) -> dict[str, Any]:
    """Return the id of the previous request, and whether system prompt and tools changed since.

    The id is empty if this user may not see the previous request. ``system_change`` and
    ``tools_change`` are empty if the transcript of one of the two requests is not stored.
    """
    rows = visible_exchanges(reader).filter(pk=exchange.previous_id)
    previous = rows.only("previous_id", "new_from").first() if exchange.new_from else None
    if previous is None:
        return {"previous_request": ""}
    added = additions([exchange, previous], with_texts=False)
    then, now = added[previous.pk], added[exchange.pk]
    changes = {
        f"{name}_change": "" if not (then.settings_parts and now.settings_parts)
        else "unchanged" if then.settings_parts[name] == now.settings_parts[name]
        else "changed since the previous request"
        for name in ("system", "tools")
    }  # fmt: skip
    return {"previous_request": previous.pk, **changes}


def _download(
    side: str, stored: storage.StoredTranscript, row: Exchange
) -> tuple[bytes | Iterable[str], str]:
    """Return the whole body, and the end of the download's file name."""
    value: Any = stored.request if side == "request" else stored.answer
    match side:
        case "stream":
            return stored.upstream_body, f"{side}.{'sse' if stored.upstream_reads else 'txt'}"
        case "request" if stored.conversation.raw_body:
            return stored.conversation.raw_body.text, f"{side}.txt"
        case "sent":
            comparison = TranscriptBodies(stored).replay
            if isinstance(comparison, str):
                raise Http404(comparison)
            return (text for _, text in sent_frames(comparison)), f"{side}.sse"
        case "session":
            messages = stored.request.get("messages")
            added = Addition(
                messages=messages if isinstance(messages, list) else [], answer=stored.answer
            )
            return jsonl_lines([ExportedRequest(row, added)]), "session.jsonl"
        case "upstream":
            value = rebuild_upstream_request(stored).body
        case "transcript":
            value = {
                "id": row.pk,
                "created": row.created.isoformat(),
                "target": stored.target,
                "request": stored.request,
                "answer": stored.answer,
                "failed_attempts": [each.as_dict() for each in stored.failed],
                "notes": row.notes,
                "facts": dict(facts(row)),
            }
    if value is None:
        raise Http404("this body is not stored")
    return [dump_json(value, indent=2)], f"{side}.json"
