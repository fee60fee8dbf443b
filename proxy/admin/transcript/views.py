"""The page of one exchange: its conversation, its four bodies, a replay, and its downloads.

Stored text may be hostile: templates autoescape all of it, the page has a strict CSP, and bodies
are served as text/plain or as attachments. Each access is recorded in the audit log.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse

from proxy.admin.core.archived_page import ArchivedPage
from proxy.admin.core.csp_middleware import BARE_CSP, set_security_headers
from proxy.admin.core.permissions import READ_RAW, READ_TRANSCRIPT
from proxy.admin.core.session_links import session_url
from proxy.admin.core.text_mode import RENDERED, text_mode, text_mode_links
from proxy.audit_log import Action
from proxy.ledger.archive.reading import archived_month_of
from proxy.ledger.transcripts import storage
from proxy.ledger.transcripts.session_diff import Addition, additions
from proxy.models import Exchange
from proxy.permissions.readings import record_reading
from proxy.permissions.row_permissions import can_open_admin, reader_of_user, visible_exchanges

from .conversation import read_conversation
from .export import ExportedRequest, download_response, encode_lines, jsonl_lines
from .header import facts, header_context
from .media import media_response
from .tabs import SHOWN_CHARS, TITLES, TranscriptBodies, curl_command, replay_result, sent_frames
from .truncation import dump_json, printable
from .upstream_request import rebuild_upstream_request

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


@dataclass(frozen=True, slots=True)
class Tab:
    slug: str
    label: str
    current: bool


def transcript_view(request: HttpRequest, exchange_id: str, site: AdminSite) -> HttpResponse:
    """Show the transcript page. ``?tab=`` selects the tab, ``?from=`` the first turn shown."""
    if request.method not in {"GET", "HEAD"}:
        return HttpResponseNotAllowed(["GET", "HEAD"])
    exchange = find_exchange(request, exchange_id)
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
    if stored is not None:
        _record(request, Action.READ, exchange, f"tab {TABS[tab].lower()}")
    previous_id, next_id = _neighbors(request, exchange)
    context = {
        **site.each_context(request),
        "title": f"Request {exchange.pk}",
        "opts": Exchange._meta,  # noqa: SLF001  # Django's admin templates need it
        "exchange": exchange,
        **header_context(exchange),
        "tabs": [
            Tab(slug, label, slug == tab)
            for slug, label in TABS.items()
            if slug not in RAW_TABS or may_read_raw
        ],
        "tab": tab,
        "may_read": may_read,
        "stored": stored is not None,
        "broken": fault is not None,
        "missing_key": getattr(fault, "key_id", ""),
        "previous_id": previous_id,
        "next_id": next_id,
        "session_url": session_url(exchange.session_id) if exchange.session_id else "",
        **(_tab_context(tab, stored, request, exchange) if stored is not None else {}),
    }
    page = TemplateResponse(request, "admin/proxy/exchange/transcript.html", context)
    return set_security_headers(page)


def _value_of(request: HttpRequest, exchange_id: str) -> tuple[Exchange, str, Any]:
    """Return the request, and the path and the value that the query names in its transcript.

    Raises Http404 or PermissionDenied.
    """
    exchange = find_exchange(request, exchange_id)
    if not request.user.has_perm(READ_TRANSCRIPT):
        raise PermissionDenied
    stored = _require_transcript(exchange.pk)
    path = request.GET.get("path", "")
    return exchange, path, _value_at({**stored.request, "answer": stored.answer}, path)


def part_view(request: HttpRequest, exchange_id: str) -> HttpResponse:
    """Return one whole content block as plain text; the page shows only its beginning."""
    exchange, path, value = _value_of(request, exchange_id)
    _record(request, Action.READ, exchange, f"block {path[:100]}")
    return _text_response(_block_text(value))


def media_view(request: HttpRequest, exchange_id: str) -> HttpResponse:
    """Return the file of an image or PDF block; the page loads it when a user opens the block."""
    if request.method not in {"GET", "HEAD"}:
        return HttpResponseNotAllowed(["GET", "HEAD"])
    exchange, path, block = _value_of(request, exchange_id)
    response = media_response(block, exchange.pk)
    if response is None:
        raise Http404("no image or PDF at this path")
    _record(request, Action.READ, exchange, f"file {path[:100]}")
    return response


def body_view(request: HttpRequest, exchange_id: str, side: str) -> HttpResponse:
    """Return one whole body of the exchange as a download."""
    exchange = find_exchange(request, exchange_id)
    if not (request.user.has_perm(READ_TRANSCRIPT) and request.user.has_perm(READ_RAW)):
        raise PermissionDenied
    if side not in DOWNLOADS:
        raise Http404("no such body")
    stored = _require_transcript(exchange.pk)
    body, ending = _download(side, stored, exchange)
    _record(request, Action.EXPORT, exchange, f"download of the {DOWNLOADS[side].lower()}")
    return download_response(body, f"{exchange.pk}-{ending}")


def _record(request: HttpRequest, action: Action, exchange: Exchange, detail: str) -> None:
    record_reading(reader_of_user(request.user), action, [exchange], detail=detail)


def find_exchange(request: HttpRequest, exchange_id: str) -> Exchange:
    """Return the exchange with this id. Raise Http404 if it is archived or not visible."""
    if not can_open_admin(request.user):
        raise PermissionDenied
    rows = visible_exchanges(reader_of_user(request.user))
    exchange = rows.filter(pk=exchange_id).first()
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


def _neighbors(request: HttpRequest, exchange: Exchange) -> tuple[str, str]:
    """Return the ids of the previous and next request of the session, or "" if there is none."""
    if not exchange.session_id:
        return "", ""
    rows = visible_exchanges(reader_of_user(request.user)).filter(session_id=exchange.session_id)
    ids = rows.values_list("pk", flat=True)
    before = ids.filter(created__lte=exchange.created, pk__lt=exchange.pk)
    after = ids.filter(created__gte=exchange.created, pk__gt=exchange.pk)
    return (
        before.order_by("-created", "-pk").first() or "",
        after.order_by("created", "pk").first() or "",
    )


def _previous_request_context(request: HttpRequest, exchange: Exchange) -> dict[str, Any]:
    """Return the id of the previous request, and whether system prompt and tools changed since.

    The id is empty if this user may not see the previous request. ``system_change`` and
    ``tools_change`` are empty if the transcript of one of the two requests is not stored.
    """
    rows = visible_exchanges(reader_of_user(request.user)).filter(pk=exchange.previous_id)
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


def _tab_context(
    tab: str, stored: storage.StoredTranscript, request: HttpRequest, exchange: Exchange
) -> dict[str, Any]:
    """Return the template context of one tab of the transcript page."""
    if tab == "conversation":
        text = request.GET.get("from", "")
        start = int(text) if text.isascii() and text.isdigit() and len(text) < 7 else None
        mode = text_mode(request)
        conversation = read_conversation(
            stored.request,
            stored.answer,
            start=start,
            new_from=exchange.new_from,
            render_markdown=mode == RENDERED,
        )
        origin = request.build_absolute_uri("/").rstrip("/")
        may_read_raw = request.user.has_perm(READ_RAW)
        command = curl_command(exchange, stored, origin) if may_read_raw else ""
        return {
            "conversation": conversation,
            "text_modes": text_mode_links(request, mode),
            "curl": command,
            "curl_needs_file": command.endswith((".json", ".txt")),
            "has_start": start is not None,
            "rejected_body": _rejected_body_text(stored),
            **_previous_request_context(request, exchange),
        }
    if tab == "sides":
        return {"panes": TranscriptBodies(stored, exchange).side_by_side()}
    if tab == "replay":
        return {"replay": replay_result(TranscriptBodies(stored, exchange))}
    return {"pane": TranscriptBodies(stored, exchange).pane(tab)}


def _rejected_body_text(stored: storage.StoredTranscript) -> str:
    """Return the beginning of a body that the gateway rejected; "" if the body was accepted."""
    raw = stored.conversation.raw_body
    return printable(raw.text[:SHOWN_CHARS].decode(errors="replace")) if raw else ""


def _download(side: str, stored: storage.StoredTranscript, row: Exchange) -> tuple[bytes, str]:
    """Return the whole body, and the end of the download's file name."""
    if side == "stream":
        return stored.upstream_body, f"{side}.{'sse' if stored.upstream_reads else 'txt'}"
    if side == "request" and stored.conversation.raw_body:
        return stored.conversation.raw_body.text, f"{side}.txt"
    if side == "sent":
        comparison = TranscriptBodies(stored, row).replay
        if isinstance(comparison, str):
            raise Http404(comparison)
        return encode_lines(text for _, text in sent_frames(comparison)), f"{side}.sse"
    if side == "session":
        messages = stored.request.get("messages")
        added = Addition(
            messages=messages if isinstance(messages, list) else [], answer=stored.answer
        )
        return encode_lines(jsonl_lines([ExportedRequest(row, added)])), "session.jsonl"
    value = _download_value(side, stored, row)
    if value is None:
        raise Http404("this body is not stored")
    return dump_json(value, indent=2).encode(errors="backslashreplace"), f"{side}.json"


def _download_value(side: str, stored: storage.StoredTranscript, row: Exchange) -> Any:
    if side == "upstream":
        return rebuild_upstream_request(stored).body
    if side == "transcript":
        return {
            "id": row.pk,
            "created": row.created.isoformat(),
            "target": stored.target,
            "request": stored.request,
            "answer": stored.answer,
            "failed_attempts": [each.as_dict() for each in stored.failed],
            "notes": row.notes,
            "facts": dict(facts(row)),
        }
    return stored.request if side == "request" else stored.answer


def _text_response(text: str) -> HttpResponse:
    body = printable(text).encode()
    return set_security_headers(
        HttpResponse(body, content_type="text/plain; charset=utf-8"), csp=BARE_CSP
    )


def _value_at(value: Any, path: str) -> Any:
    """Return the JSON value at a dotted path such as ``messages.2.content.0``."""
    for step in path.split(".") if path else ():
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, ValueError, TypeError):
            raise Http404(f"nothing at this path: {step[:40]!r}") from None
    return value


def _block_text(value: Any) -> str:
    """Return the text of a content block, or the block as JSON if it has no text."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        for name in ("text", "thinking"):
            if isinstance(value.get(name), str):
                return str(value[name])
    return dump_json(value, indent=2)
