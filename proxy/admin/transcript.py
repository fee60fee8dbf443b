"""One exchange, readable: the conversation, and beneath it the four bodies as they were.

Whatever was said in it is hostile until shown otherwise: it reaches the page through autoescape
only, the page carries a strict CSP, and bodies leave as text/plain or as attachments (T26). Each
reading is noted in the admin's log.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse

from proxy.audit_trail import note
from proxy.models import Exchange
from proxy.record import transcripts
from proxy.record.additions import Addition, additions
from proxy.visibility import may_open_windows, reader_of_user, visible_exchanges

from .clips import dump, printable
from .conversation import read_conversation
from .exports import Told, as_file, joined, jsonl
from .headers import BARE_CSP, harden
from .live import session_url
from .panes import SHOWN_CHARS, TITLES, Sides, curl, replay_of, sent_frames
from .sides import upstream_request_of
from .summary import facts, head

READ_TRANSCRIPT: Final = "proxy.view_transcript"
READ_RAW: Final = "proxy.view_part"  # the bodies beneath: a permission of its own

TABS: Final[Mapping[str, str]] = {
    "conversation": "Conversation",
    "sides": "Four sides",
    **TITLES,
    "replay": "Replay",
    "record": "Record",
}
RAW_TABS: Final = frozenset({"sides", *TITLES, "replay"})
WHOLE: Final[Mapping[str, str]] = {
    **TITLES,
    "transcript": "Transcript",
    "session": "Transcript as Claude Code keeps it",
}
"""What can be downloaded."""


@dataclass(frozen=True, slots=True)
class Tab:
    slug: str
    label: str
    current: bool


def transcript_view(request: HttpRequest, exchange_id: str, site: AdminSite) -> HttpResponse:
    """The page. ``?tab=`` picks the side, ``?from=`` the first turn."""
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
    stored, broken = None, False
    if may_read and tab != "record":
        stored, broken = _read(exchange.pk)
    if stored is not None:
        note(request.user, exchange, f"Read the transcript ({TABS[tab].lower()}).")
    older, newer = _neighbours(request, exchange)
    context = {
        **site.each_context(request),
        "title": f"Request {exchange.pk}",
        "opts": Exchange._meta,  # noqa: SLF001  # what the admin's own templates are given
        "exchange": exchange,
        **head(exchange),
        "tabs": [
            Tab(slug, label, slug == tab)
            for slug, label in TABS.items()
            if slug not in RAW_TABS or may_read_raw
        ],
        "tab": tab,
        "may_read": may_read,
        "stored": stored is not None,
        "broken": broken,
        "older": older,
        "newer": newer,
        "session_url": session_url(exchange.session_id) if exchange.session_id else "",
        **(_side(tab, stored, request, exchange) if stored is not None else {}),
    }
    page = TemplateResponse(request, "admin/proxy/exchange/transcript.html", context)
    return harden(page)


def part_view(request: HttpRequest, exchange_id: str) -> HttpResponse:
    """The whole of one block as plain text: what the page shows only the beginning of."""
    exchange = find_exchange(request, exchange_id)
    if not request.user.has_perm(READ_TRANSCRIPT):
        raise PermissionDenied
    stored, _ = _read(exchange.pk)
    where = request.GET.get("path", "")
    if stored is None:
        raise Http404("no transcript is kept for this request")
    value = _at({**stored.request, "answer": stored.answer}, where)
    note(request.user, exchange, f"Read the block {where[:100]} of the transcript.")
    return _plain(_readable(value))


def body_view(request: HttpRequest, exchange_id: str, side: str) -> HttpResponse:
    """One body whole, as a download."""
    exchange = find_exchange(request, exchange_id)
    if not (request.user.has_perm(READ_TRANSCRIPT) and request.user.has_perm(READ_RAW)):
        raise PermissionDenied
    stored, _ = _read(exchange.pk)
    if stored is None or side not in WHOLE:
        raise Http404("nothing is kept for this request")
    body, ending = _download(side, stored, exchange)
    note(request.user, exchange, f"Downloaded the {WHOLE[side].lower()}.")
    return as_file(body, f"{exchange.pk}-{ending}")


def find_exchange(request: HttpRequest, exchange_id: str) -> Exchange:
    """The row, if this reader may see it; otherwise it does not exist for them (T10)."""
    if not may_open_windows(request.user):
        raise PermissionDenied
    rows = visible_exchanges(reader_of_user(request.user))
    exchange = rows.filter(pk=exchange_id).first()
    if exchange is None:
        raise Http404("no such request")
    return exchange


def _read(exchange_id: str) -> tuple[transcripts.StoredTranscript | None, bool]:
    """What is stored, and whether it is there but damaged."""
    try:
        return transcripts.read(exchange_id), False
    except transcripts.BrokenTranscript:
        return None, True


def _neighbours(request: HttpRequest, exchange: Exchange) -> tuple[str, str]:
    """Ids of the requests before and after this one in its session; empty: none."""
    if not exchange.session_id:
        return "", ""
    rows = visible_exchanges(reader_of_user(request.user)).filter(session_id=exchange.session_id)
    ids = rows.values_list("pk", flat=True)
    before = ids.filter(created__lte=exchange.created, pk__lt=exchange.pk).order_by(
        "-created", "-pk"
    )
    after = ids.filter(created__gte=exchange.created, pk__gt=exchange.pk).order_by("created", "pk")
    return before.first() or "", after.first() or ""


def _before(request: HttpRequest, exchange: Exchange) -> dict[str, Any]:
    """The request that this one goes on from, if this reader sees it; and what is no more as then.

    ``system_word`` and ``tools_word``: empty where one of the two transcripts is not kept.
    """
    rows = visible_exchanges(reader_of_user(request.user)).filter(pk=exchange.previous_id)
    before = rows.only("previous_id", "new_from").first() if exchange.new_from else None
    if before is None:
        return {"before": ""}
    added = additions([exchange, before], words=False)
    then, now = added[before.pk], added[exchange.pk]
    words = {
        f"{name}_word": "" if not (then.setting and now.setting)
        else "as in the request before" if then.setting[name] == now.setting[name]
        else "changed since the request before"
        for name in ("system", "tools")
    }  # fmt: skip
    return {"before": before.pk, **words}


def _side(
    tab: str, stored: transcripts.StoredTranscript, request: HttpRequest, exchange: Exchange
) -> dict[str, Any]:
    """What the template of this tab needs beside the head."""
    if tab == "conversation":
        start = request.GET.get("from", "")
        chosen = int(start) if start.isascii() and start.isdigit() and len(start) < 7 else None
        talk = read_conversation(
            stored.request, stored.answer, start=chosen, new_from=exchange.new_from
        )
        raw = request.user.has_perm(READ_RAW)
        line = curl(exchange, stored, request.build_absolute_uri("/").rstrip("/")) if raw else ""
        return {
            "talk": talk,
            "curl": line,
            "curl_file": line.endswith((".json", ".txt")),
            "chosen": chosen is not None,
            "faulty": _faulty(stored),
            **_before(request, exchange),
        }
    if tab == "sides":
        return {"panes": Sides(stored, exchange).beside()}
    if tab == "replay":
        return {"replay": replay_of(Sides(stored, exchange))}
    return {"pane": Sides(stored, exchange).pane(tab)}


def _faulty(stored: transcripts.StoredTranscript) -> str:
    """The beginning of a body that is no conversation; empty: it is one."""
    raw = stored.conversation.raw
    return printable(raw.text[:SHOWN_CHARS].decode(errors="replace")) if raw else ""


def _download(side: str, stored: transcripts.StoredTranscript, row: Exchange) -> tuple[bytes, str]:
    """The whole of a side, and how its file's name ends."""
    if side == "stream":
        return stored.upstream_body, f"{side}.{'sse' if stored.upstream_reads else 'txt'}"
    if side == "request" and stored.conversation.raw:
        return stored.conversation.raw.text, f"{side}.txt"
    if side == "sent":
        found = Sides(stored, row).replayed
        if isinstance(found, str):
            raise Http404(found)
        return joined(text for _, text in sent_frames(found)), f"{side}.sse"
    if side == "session":
        messages = stored.request.get("messages")
        added = Addition(
            messages=messages if isinstance(messages, list) else [], answer=stored.answer
        )
        return joined(jsonl([Told(row, added)])), "session.jsonl"
    value = _value_of(side, stored, row)
    if value is None:
        raise Http404("nothing is kept of this side")
    return dump(value, indent=2).encode(errors="backslashreplace"), f"{side}.json"


def _value_of(side: str, stored: transcripts.StoredTranscript, row: Exchange) -> Any:
    if side == "upstream":
        return upstream_request_of(stored).body
    if side == "transcript":
        return {
            "id": row.pk,
            "created": row.created.isoformat(),
            "target": stored.target,
            "request": stored.request,
            "answer": stored.answer,
            "failed_attempts": [each.told() for each in stored.failed],
            "notes": row.notes,
            "facts": dict(facts(row)),
        }
    return stored.request if side == "request" else stored.answer


def _plain(text: str) -> HttpResponse:
    body = printable(text).encode()
    return harden(HttpResponse(body, content_type="text/plain; charset=utf-8"), csp=BARE_CSP)


def _at(value: Any, where: str) -> Any:
    """The value at a dotted path such as ``messages.2.content.0``."""
    for step in where.split(".") if where else ():
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, ValueError, TypeError):
            raise Http404(f"nothing at this path: {step[:40]!r}") from None
    return value


def _readable(value: Any) -> str:
    """A block's own words where it has some, else its JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        for name in ("text", "thinking"):
            if isinstance(value.get(name), str):
                return str(value[name])
    return dump(value, indent=2)
