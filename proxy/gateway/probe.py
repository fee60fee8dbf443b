"""Puts the probing questions to an upstream: the gateway's own client, translator and rules.

In an event loop of its own, so that it shares no connection with what is being served. Nothing of
it is in the ledger: no key asked, nobody is billed for it.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from proxy.models import Upstream, UpstreamPolicy
from proxy.probing import LONGEST_S, QUESTIONS, Finding, Question
from proxy.record.rebuild import replay
from translator.errors import TranslatorError
from translator.secret_redaction import masked_shapes
from translator.sse import format_sse

from .directory import server_of
from .glance import BYTES_PER_TOKEN
from .pump import upstream_error
from .refusals import UpstreamFailed
from .targets import Target
from .upstream import Call, Dial, close_transport, post

SHOWN_CHARS: Final = 8_000
MOST_BYTES: Final = 2**20
ANTHROPIC: Final = {"anthropic-version": "2023-06-01"}


def probe(upstream: Upstream, model: str) -> Sequence[Finding]:
    """Blocks; see ``proxy.probing.probe``."""
    upstream.clean()  # the rules for addresses, as they are today
    target = Target(server=server_of(upstream, UpstreamPolicy.objects.all()), model=model)
    return asyncio.run(_all(target, model))


async def _all(target: Target, model: str) -> list[Finding]:
    try:
        return [await _one(target, model, question) for question in QUESTIONS]
    finally:
        await close_transport()


async def _one(target: Target, model: str, question: Question) -> Finding:
    server = target.server
    request = {**question.request, "model": model, "stream": True}
    asked = _Asked(target, question)
    try:
        made = server.dialect.build_request(request, target.for_translator(model))
        asked.body = msgspec.json.encode({**made.body, **server.extra_body})
        async with asyncio.timeout(LONGEST_S):
            await asked.ask()
    except TranslatorError as exc:
        return asked.finding(ok=False, says=f"It cannot be asked: {exc}.")
    except TimeoutError:
        return asked.finding(ok=False, says=f"No whole answer within {LONGEST_S:.0f} seconds.")
    except UpstreamFailed as exc:
        return asked.finding(ok=False, says=f"{exc.error.error_type}: {exc.error.message}.")
    return _judged(asked, request)


class _Asked:
    """One question on its way, and what is heard."""

    def __init__(self, target: Target, question: Question) -> None:
        self.target = target
        self.question = question
        self.body = b""
        self.call: Call | None = None
        self.reads: list[tuple[float, bytes]] = []
        self.began = asyncio.get_running_loop().time()
        self.head_ms: float | None = None
        self.ended_ms: float | None = None
        self.told = ""
        self.answer = ""

    async def ask(self) -> None:
        """Raises UpstreamFailed for whatever is no answer."""
        server = self.target.server
        dial = Dial(server.name, self.target.model, self.began)
        extra = ANTHROPIC if server.dialect_name == "anthropic" else {}
        call = self.call = await post(server, server.url, self.body, extra, dial)
        self.head_ms = self._ms()
        try:
            if call.status != 200:
                raw = await call.beginning()
                self.reads.append((self._ms(), raw))
                raise UpstreamFailed(upstream_error(self.target, call, raw))
            size = 0
            while size < MOST_BYTES and (piece := await call.read()):
                size += len(piece)
                self.reads.append((self._ms(), piece))
        finally:
            self.ended_ms = self._ms()
            call.close()

    def _ms(self) -> float:
        return (asyncio.get_running_loop().time() - self.began) * 1000

    def finding(self, *, ok: bool, says: str) -> Finding:
        heard = b"".join(piece for _, piece in self.reads)[:MOST_BYTES]
        if not ok:  # it may be an error that quotes a credential
            heard = masked_shapes(heard)
        return Finding(
            question=self.question,
            ok=ok,
            says=_shown(says),
            status=self.call.status if self.call else None,
            head_ms=self.head_ms,
            first_ms=self.reads[0][0] if self.reads else None,
            total_ms=self.ended_ms,
            reads=len(self.reads),
            sent=_shown(msgspec.json.format(self.body, indent=2).decode(errors="replace")),
            heard=_shown(heard.decode(errors="replace")),
            told=_shown(self.told),
            answer=_shown(self.answer),
        )


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def _judged(asked: _Asked, request: dict[str, Any]) -> Finding:
    """What the answer amounts to, by the machine that translates all answers."""
    record = asked.target.as_record(str(request["model"]))
    if asked.call is not None and asked.call.content_type == "text/html":
        return asked.finding(ok=False, says="It answered with a web page: is the base URL right?")
    try:
        found = replay(
            request,
            record,
            asked.reads,
            message_id="msg_probe",
            input_estimate=len(asked.body) // BYTES_PER_TOKEN,
        )
    except (LookupError, TranslatorError, ValueError) as exc:
        return asked.finding(ok=False, says=f"The answer cannot be read: {type(exc).__name__}.")
    asked.told = "".join(format_sse(event["type"], event) for event in found.events)
    if found.stream.error is not None:
        return asked.finding(ok=False, says=f"{found.stream.error.message}.")
    content = (found.answer or {}).get("content") or []
    asked.answer = "\n".join(filter(None, map(_words, content)))
    kinds = [block.get("type") for block in content]
    stop = (found.answer or {}).get("stop_reason")
    if asked.question.name == "tool":
        inputs = [block.get("input") for block in content if block.get("type") == "tool_use"]
        called = any(isinstance(given, dict) for given in inputs)
        words = "It called the tool." if called else "It answered, but called no tool."
        return asked.finding(ok=called, says=f"{words} Stop reason: {stop}.")
    spoke = "text" in kinds
    words = "It answered in words." if spoke else "It answered, but said nothing."
    return asked.finding(ok=spoke, says=f"{words} Stop reason: {stop}.")


def _words(block: dict[str, Any]) -> str:
    if block.get("type") == "tool_use":
        return f"{block.get('name')}({msgspec.json.encode(block.get('input')).decode()})"
    return str(block.get("text") or "")
