"""Send the text of PDFs to upstreams that accept no files.

Source: public reports of sessions that ended because a PDF was in the history, which each later
request contains (MoonshotAI/kimi-code 2378, anthropics/claude-code 25323). A PDF without text stays
in the request; the translator puts a placeholder in its place.

A child process with limits reads each PDF (``pdf_text.py``). A session sends its PDF with
each turn, so the texts are kept for a while.
"""

import asyncio
import hashlib
import json
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from proxy.gateway.http.lenient_json import decode_json
from proxy.gateway.snapshot.targets import Target
from proxy.limited_work import MAX_CHILDREN, Limits, TooBusy, WorkFailed, run_limited_async
from translator.dialect import Lesson
from translator.notes import Note
from translator.request.body_edits import apply_lesson
from translator.request.history_shapes import FILE_PARTS, parts_of

from .model_memory import memory

Block = dict[str, Any]

FUNCTION: Final = "proxy.gateway.upstream.pdf_text:read_pdf"
LIMITS: Final = Limits(
    wall_s=60,  # longer than the CPU time, so that other work on the machine changes no result
    cpu_s=10,
    memory_bytes=2**30,
    input_bytes=32 * 2**20,  # in base64: the largest request of Anthropic's API
    output_bytes=4 * 2**20,  # more than the JSON of the longest text has
    wait_s=60,
)
MAX_READ: Final = 8
"""The most PDFs that are read for one request, the newest first. Those of earlier turns have been
read already."""
RETRY_AFTER_S: Final = 600.0
"""A PDF that could not be read in its limits is not read again for this time."""
TEAM_CHARACTERS: Final = 1_000_000
MAX_TEAMS: Final = 64
PDF_DATA: Final = "data:application/pdf;base64,"
REFUSED: Final = Lesson("files_as_text")
_encode: Final = msgspec.json.Encoder().encode
TEXT_SENT: Final = "the text of the PDF is sent, without its pictures and its layout"


class PdfText(NamedTuple):
    """What was read of one PDF."""

    text: str  # empty if there is none
    fault: str = ""  # why there is no text
    until: float = float("inf")  # when it may be read again


class PdfTexts:
    """The texts of PDFs that were read, by team and digest.

    Teams share nothing: the time of a response would tell a team that another one has a file.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._teams: OrderedDict[int, OrderedDict[bytes, PdfText]] = OrderedDict()

    def get(self, team: int, digest: bytes) -> PdfText | None:
        texts = self._teams.get(team)
        if texts is None or (known := texts.get(digest)) is None or known.until < self._clock():
            return None
        self._teams.move_to_end(team)
        texts.move_to_end(digest)
        return known

    def add(self, team: int, digest: bytes, known: PdfText) -> None:
        """Add a text; forget the team's oldest texts, and the teams that were silent longest."""
        texts = self._teams.setdefault(team, OrderedDict())
        self._teams.move_to_end(team)
        texts[digest] = known
        while sum(len(each.text) + 100 for each in texts.values()) > TEAM_CHARACTERS:
            texts.popitem(last=False)
        while len(self._teams) > MAX_TEAMS:
            self._teams.popitem(last=False)


class PdfReaders:
    """Reads PDFs, one at a time for a team: no team waits for all PDFs of another."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(MAX_CHILDREN - 1)  # a child is left for other work
        self._teams: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def read(self, team: int, data: str) -> PdfText:
        try:
            async with self._teams[team], self._slots:
                answer = json.loads(await run_limited_async(FUNCTION, data.encode(), LIMITS))
        except TooBusy:
            return PdfText("", "it could not be read now", until=0)
        except WorkFailed:
            return PdfText("", "it takes too long to read", time.monotonic() + RETRY_AFTER_S)
        return PdfText(answer.get("text", ""), answer.get("fault", ""))


pdf_texts: Final = PdfTexts()
readers: Final = PdfReaders()


async def load_pdf_texts(
    body: bytes, request: dict[str, Any], target: Target, team: int
) -> dict[int, PdfText]:
    """Return what a request's PDFs say, by the ``id`` of their data.

    ``request`` is the decoded ``body``; the data lives in it for as long as the result is used. An
    upstream that takes files needs no text: {}.
    """
    if b'"document"' not in body or _takes_files(target, request["model"]):
        return {}
    found: dict[int, PdfText] = {}
    unread = MAX_READ
    for _, block in reversed([*_pdfs(request)]):
        data = block["source"]["data"]
        if id(data) in found:
            continue
        if len(data) > LIMITS.input_bytes:
            found[id(data)] = PdfText("", "it is too large")
            continue
        digest = await asyncio.to_thread(_digest, data)
        known = pdf_texts.get(team, digest)
        if known is None and unread:
            unread -= 1
            known = await readers.read(team, data)
            pdf_texts.add(team, digest, known)
        found[id(data)] = known or PdfText("", "the request has too many of them")
    return found


def _takes_files(target: Target, requested: str) -> bool:
    """Return whether the model takes files: by its profile, and by what its refusals have shown.

    Anthropic's API has them as they came, whatever its server makes of them.
    """
    server = target.server
    if server.dialect_name == "anthropic":
        return True
    return server.profile.files and REFUSED not in memory.lessons(
        server, target.model_for(requested)
    )


async def with_texts_of_files(body: bytes, team: int) -> bytes:
    """Return the body of an upstream that refused files with texts in their places.

    The client's request is released by then, so the PDFs are read from the upstream's body.
    """
    sent = decode_json(body)
    for part in [*parts_of(sent.get("messages"), FILE_PARTS),
                 *parts_of(sent.get("input"), FILE_PARTS)][-MAX_READ:]:  # fmt: skip
        file = part.get("file") or part
        _, _, data = str(file.get("file_data") or "").partition(PDF_DATA)
        if not data or len(data) > LIMITS.input_bytes:
            continue
        digest = await asyncio.to_thread(_digest, data)
        if (known := pdf_texts.get(team, digest)) is None:
            known = await readers.read(team, data)
            pdf_texts.add(team, digest, known)
        if known.text:
            kind = "input_text" if part["type"] == "input_file" else "text"
            text = f"{file.get('filename') or ''}\n{known.text}"
            part.clear()
            part.update(type=kind, text=text)
    applied = apply_lesson(sent, REFUSED)
    return _encode(applied[0] if applied is not None else sent)


def with_pdf_texts(
    request: dict[str, Any], texts: Mapping[int, PdfText], notes: list[Note]
) -> dict[str, Any]:
    """Return the request with text documents in place of the PDFs whose text is known.

    ``notes`` gets a note for each PDF.
    """
    if not texts:
        return request
    replaced: dict[int, Block] = {}  # by the id of the block
    for path, block in _pdfs(request):
        known = texts.get(id(block["source"]["data"]))
        if known is None:
            continue
        if known.text:
            notes.append(Note(path, "clamped", TEXT_SENT))
            source = {"type": "text", "media_type": "text/plain", "data": known.text}
            replaced[id(block)] = {**block, "source": source}
        else:
            notes.append(Note(path, "dropped", f"the text of a PDF cannot be read: {known.fault}"))
    return {**request, "messages": [_with(message, replaced) for message in request["messages"]]}


def _pdfs(request: dict[str, Any]) -> Iterator[tuple[str, Block]]:
    """Return the path and the block of each PDF in base64, also in results of tools."""
    messages = request.get("messages")
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        yield from _pdfs_in(message, f"messages.{number}")


def _pdfs_in(holder: Any, path: str) -> Iterator[tuple[str, Block]]:
    """Return the PDFs in the content of a message or of a tool's result."""
    content = holder.get("content") if isinstance(holder, dict) else None
    for number, block in enumerate(content if isinstance(content, list) else ()):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "document" and _is_pdf(block.get("source")):
            yield f"{path}.content.{number}", block
        elif kind == "tool_result":
            yield from _pdfs_in(block, f"{path}.content.{number}")


def _is_pdf(source: Any) -> bool:
    """Return whether the source is data that the translator would send as a PDF."""
    is_data = isinstance(source, dict) and source.get("type") == "base64"
    return is_data and isinstance(source.get("data"), str)


def _with(holder: Block, replaced: Mapping[int, Block]) -> Block:
    """Return a message or a tool's result with the replaced blocks."""
    content = holder.get("content")
    if not isinstance(content, list):
        return holder
    return {
        **holder,
        "content": [
            _with(block, replaced)
            if block.get("type") == "tool_result"
            else replaced.get(id(block), block)
            for block in content
        ],
    }


def _digest(data: str) -> bytes:
    return hashlib.sha256(data.encode()).digest()
