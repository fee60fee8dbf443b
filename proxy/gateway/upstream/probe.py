"""The upstream probe: send test requests with the gateway's HTTP client, translator and policies.

The probe runs in its own event loop, so it shares no connection with client requests. It uses no
gateway key, so it writes no row to the ledger and charges no budget.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from proxy.gateway.http.errors import UpstreamFailed
from proxy.gateway.http.lenient_json import decode_json
from proxy.gateway.request.attempts import AttemptRecord
from proxy.gateway.snapshot.server_builder import build_server
from proxy.gateway.snapshot.targets import Target
from proxy.ledger.transcripts.stream_replay import replay
from proxy.models import Upstream, UpstreamPolicy
from proxy.upstream_probe import LONGEST_S, QUESTIONS, UNSIGNED_THINKING, Finding, Question
from translator.anthropic_upstream.bedrock_events import CONTENT_TYPE as EVENT_STREAM
from translator.anthropic_upstream.bedrock_events import BedrockEvents
from translator.errors import BadUpstream, TranslatorError
from translator.secret_redaction import mask_secrets
from translator.stream.sse import format_sse

from .client import UpstreamResponse, close_transport, post, upstream_error
from .model_memory import MAX_REPAIRS
from .passthrough import as_cloud_request

SHOWN_CHARS: Final = 8_000
MAX_BYTES: Final = 2**20
ANTHROPIC: Final = {"anthropic-version": "2023-06-01"}


def probe(upstream: Upstream, model: str) -> Sequence[Finding]:
    """Run the probe; see ``proxy.upstream_probe.probe``."""
    questions = [*QUESTIONS]
    if upstream.dialect == "anthropic":
        questions.append(UNSIGNED_THINKING)
    return send_questions(upstream, model, questions)


def send_questions(
    upstream: Upstream, model: str, questions: Iterable[Question], timeout_s: float = LONGEST_S
) -> Sequence[Finding]:
    """Send these questions in turn; see ``proxy.upstream_probe.probe`` for the errors.

    ``timeout_s`` limits the time of each question.
    """
    upstream.clean()  # checks whether the upstream's address is allowed
    target = Target(server=build_server(upstream, UpstreamPolicy.objects.all()), model=model)

    async def run_all() -> list[Finding]:
        try:
            return [await _run_one(target, model, question, timeout_s) for question in questions]
        finally:
            await close_transport()

    return asyncio.run(run_all())


async def _run_one(target: Target, model: str, question: Question, timeout_s: float) -> Finding:
    server = target.server
    request = {**question.request, "model": model, "stream": True}
    run = _ProbeRun(target, question)
    translated_for = target.for_translator(model)
    if question.capability:
        tried: dict[str, Any] = {question.capability: True}
        profile = dataclasses.replace(server.profile, **tried)
        translated_for = dataclasses.replace(translated_for, profile=profile)
    try:
        made = server.dialect.build_request(request, translated_for)
        fields = {**made.body, **server.extra_body}
        headers = ANTHROPIC if server.dialect_name == "anthropic" else {}
        fields, run.headers = as_cloud_request(server, fields, headers, [])
        async with asyncio.timeout(timeout_s):
            await run.send_with_repairs(fields)
    except TranslatorError as exc:
        return run.finding(ok=False, summary=f"The request cannot be translated: {exc}.")
    except TimeoutError:
        return run.finding(ok=False, summary=f"No whole answer within {timeout_s:g} seconds.")
    except UpstreamFailed as exc:
        if question.capability and run.call is not None and run.call.status == 400:
            return _capability_finding(run, is_supported=False)
        return run.finding(ok=False, summary=f"{exc.error.error_type}: {exc.error.message}.")
    return _classify(run, request)


class _ProbeRun:
    """The run of one ``Question``, with the data received from the upstream."""

    def __init__(self, target: Target, question: Question) -> None:
        self.target = target
        self.question = question
        self.body = b""
        self.headers: dict[str, str] = {}
        self.call: UpstreamResponse | None = None
        self.reads: list[tuple[float, bytes]] = []
        self.began = asyncio.get_running_loop().time()
        self.head_ms: float | None = None
        self.ended_ms: float | None = None
        self.client_events = ""
        self.answer = ""
        self.repairs: list[str] = []

    async def send_with_repairs(self, fields: dict[str, Any]) -> None:
        """Send the request, and again without what is refused, as for clients.

        Raises UpstreamFailed.
        """
        for _ in range(MAX_REPAIRS):
            self.body = msgspec.json.encode(fields)
            try:
                await self.send()
            except UpstreamFailed:
                repair = None
                if self.reads and not self.question.capability:
                    with contextlib.suppress(BadUpstream):
                        error = decode_json(self.reads[-1][1])
                        status = self.call.status if self.call is not None else 0
                        repair = self.target.server.dialect.repair(fields, status, error)
                if repair is None:
                    raise
                changes = [" ".join(filter(None, lesson)) for lesson in repair.lessons]
                changes = changes or [note.reason for note in repair.notes]
                self.repairs += [f"{change} ({repair.words})" for change in changes]
                fields = repair.body
                self.reads.clear()
            else:
                return
        self.body = msgspec.json.encode(fields)
        await self.send()

    async def send(self) -> None:
        """Send the request and read the response. Raises UpstreamFailed."""
        server = self.target.server
        record = AttemptRecord(server.name, self.target.model, self.began)
        url = server.url_for(self.target.model)
        call = self.call = await post(server, url, self.body, self.headers, record)
        self.head_ms = self._elapsed_ms()
        framed = BedrockEvents() if call.content_type == EVENT_STREAM else None
        try:
            if call.status != 200:
                raw = await call.read_error_body()
                self.reads.append((self._elapsed_ms(), raw))
                raise UpstreamFailed(upstream_error(self.target, call, raw))
            size = 0
            while size < MAX_BYTES and (piece := await call.read()):
                size += len(piece)
                text = piece if framed is None else framed.feed(piece)
                self.reads.append((self._elapsed_ms(), text))
        finally:
            self.ended_ms = self._elapsed_ms()
            call.close()

    def _elapsed_ms(self) -> float:
        return (asyncio.get_running_loop().time() - self.began) * 1000

    def finding(self, *, ok: bool, summary: str) -> Finding:
        received = b"".join(piece for _, piece in self.reads)[:MAX_BYTES]
        if not ok:  # the error response may contain a credential
            received = mask_secrets(received)
        if self.repairs:
            summary += f" Changed after refusals: {'; '.join(self.repairs)}."
        return Finding(
            question=self.question,
            ok=ok,
            repairs=tuple(self.repairs),
            accepted=self.body if self.call is not None and self.call.status == 200 else b"",
            summary=_shortened(summary),
            status=self.call.status if self.call else None,
            head_ms=self.head_ms,
            first_ms=self.reads[0][0] if self.reads else None,
            total_ms=self.ended_ms,
            reads=len(self.reads),
            sent=_shortened(msgspec.json.format(self.body, indent=2).decode(errors="replace")),
            received=_shortened(received.decode(errors="replace")),
            client_events=_shortened(self.client_events),
            answer=_shortened(self.answer),
        )


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def _classify(run: _ProbeRun, request: dict[str, Any]) -> Finding:
    """Translate the response, and return the result of the test request."""
    target_record = run.target.as_record(str(request["model"]))
    if run.call is not None and run.call.content_type == "text/html":
        return run.finding(ok=False, summary="It answered with a web page: is the base URL right?")
    try:
        found = replay(
            request,
            target_record,
            run.reads,
            message_id="msg_probe",
        )
    except (LookupError, TranslatorError, ValueError) as exc:
        return run.finding(ok=False, summary=f"The answer cannot be read: {type(exc).__name__}.")
    run.client_events = "".join(format_sse(event["type"], event) for event in found.events)
    if found.stream.error is not None:
        return run.finding(ok=False, summary=f"{found.stream.error.message}.")
    content = (found.answer or {}).get("content") or []
    run.answer = "\n".join(filter(None, map(_block_text, content)))
    kinds = [block.get("type") for block in content]
    stop = (found.answer or {}).get("stop_reason")
    if run.question.capability:
        return _capability_finding(run, is_supported=True)
    if run.question.name == "tool":
        inputs = [block.get("input") for block in content if block.get("type") == "tool_use"]
        called = any(isinstance(given, dict) for given in inputs)
        words = "It called the tool." if called else "It answered, but called no tool."
        return run.finding(ok=called, summary=f"{words} Stop reason: {stop}.")
    has_text = "text" in kinds
    words = "It answered in words." if has_text else "It answered without text."
    return run.finding(ok=has_text, summary=f"{words} Stop reason: {stop}.")


def _capability_finding(run: _ProbeRun, *, is_supported: bool) -> Finding:
    """Return whether the upstream supports the tested capability, and what to configure."""
    name = run.question.capability
    found = "accepts" if is_supported else "refuses"
    as_configured = getattr(run.target.server.profile, name) is is_supported
    advice = "as configured" if as_configured else f"set {name} = {str(is_supported).lower()}"
    return run.finding(ok=as_configured or is_supported, summary=f"It {found} this: {advice}.")


def _block_text(block: dict[str, Any]) -> str:
    if block.get("type") == "tool_use":
        return f"{block.get('name')}({msgspec.json.encode(block.get('input')).decode()})"
    return str(block.get("text") or "")
