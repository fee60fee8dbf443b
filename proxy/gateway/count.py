"""POST /v1/messages/count_tokens: from the upstream where it can count, else an estimate.

An Anthropic upstream gets the client's bytes and its answer goes back as it came (mapping.md 7).

An estimate says so in ``x-bridge-estimate: true``; it errs high, because a client that believes
in too few tokens overruns the model's window. ``x-bridge-estimate-factor`` tells what was learned
of this model's tokenizer.
"""

import asyncio
from typing import Any, Final

import msgspec
from yarl import URL

from translator.anthropic.request import parse_count_tokens_request
from translator.anthropic_upstream import DIALECT as ANTHROPIC
from translator.errors import BadUpstream, TranslatorError
from translator.estimate import estimate_tokens

from .auth import authenticate
from .base import JSON, StreamingHttpConsumer
from .consumer import parsed
from .decoding import decode_json
from .estimates import corrected
from .passthrough import endpoint, forwarded, returned, spliced
from .refusals import UpstreamFailed
from .routes import choose_route
from .shared_limits import admit
from .targets import Target
from .upstream import Dial, post

COUNT_WITHIN_S: Final = 10
COUNTED: Final = frozenset(
    {"input", "instructions", "model", "parallel_tool_calls", "reasoning", "text", "tool_choice",
     "tools"}
)  # fmt: skip
"""What the counting endpoint of the Responses API takes of a body; it refuses any other field."""
UNCOUNTED: Final = frozenset({"compaction", "inference_geo"})
"""What a message would be refused for, and no count depends on."""

_without_endpoint: set[str] = set()
"""Upstreams that answered 404 or 405: not asked again while this process lives."""


class CountTokensConsumer(StreamingHttpConsumer):
    async def handle(self) -> None:
        caller = authenticate(self.head)
        body = await self.read_body()
        request = await parsed(self, caller, body, parse_count_tokens_request)
        route = choose_route(caller, request["model"])
        target = route.targets[0]
        async with admit(caller, 0) as seat:
            self.extra_headers += seat.headers
            counted = await self._counted(target, request, body, caller.key_id)
        if counted is not None:
            await self.respond(200, counted)
            return
        estimate = estimate_tokens(request)
        model = target.model_for(request["model"])
        tokens, headers = await corrected(target.server.name, model, estimate)
        await self.respond(200, _told(tokens, request), (JSON, *headers))

    async def _counted(
        self, target: Target, request: dict[str, Any], raw: bytes, key_id: int
    ) -> bytes | None:
        """The answer with the upstream's own count; None when it cannot or does not tell."""
        server = target.server
        url = server.count_url
        if url is None or server.name in _without_endpoint:
            return None
        headers: dict[str, str] = {}
        through = server.dialect_name == "anthropic"
        try:
            permitted = server.policies.permitted(request, [])
            if server.dialect_name == "responses":
                body = _count_body(target, permitted)
            else:
                body = _native_body(target, request, permitted, raw)
            if through:
                url = endpoint(url, self.head)
                headers = server.policies.permitted_headers(forwarded(self.head), [])
            async with asyncio.timeout(COUNT_WITHIN_S):
                answer = await self._asked(target, url, body, headers, key_id)
        except (UpstreamFailed, TranslatorError, TimeoutError):
            return None
        tokens = _tokens_in(answer)
        if answer is None or tokens is None:
            return None
        return answer if through else _told(tokens, request)

    async def _asked(
        self, target: Target, url: URL, body: bytes, headers: dict[str, str], key_id: int
    ) -> bytes | None:
        """The upstream's answer, if it is one; an upstream without the endpoint is remembered."""
        server = target.server
        dial = Dial(server.name, target.model, self.watch.now())
        call = await post(server, url, body, headers, dial, key_id=key_id)
        try:
            if call.status in {404, 405}:
                _without_endpoint.add(server.name)
            if call.status != 200:
                return None
            if server.dialect_name == "anthropic":
                told = returned(call, self.extra_headers).items()
                self.extra_headers += [(n.encode("latin-1"), t.encode("latin-1")) for n, t in told]
            return await call.beginning()
        finally:
            call.close()


def _told(tokens: int, request: dict[str, Any]) -> bytes:
    """Clients of context management also hear the count before edits: none are made here."""
    answer: dict[str, Any] = {"input_tokens": tokens}
    if request.get("context_management"):
        answer["context_management"] = {"original_input_tokens": tokens}
    return msgspec.json.encode(answer)


def _tokens_in(answer: bytes | None) -> int | None:
    try:
        told = decode_json(answer) if answer is not None else None
    except BadUpstream:
        return None
    tokens = told.get("input_tokens") if isinstance(told, dict) else None
    return tokens if type(tokens) is int and tokens >= 0 else None


def _native_body(
    target: Target, request: dict[str, Any], permitted: dict[str, Any], raw: bytes
) -> bytes:
    """For an endpoint that takes Anthropic's own requests: as a message would reach it."""
    made = ANTHROPIC.build_request(permitted, target.for_translator(request["model"]))
    return spliced(raw, request, {**made.body, "model": target.model_for(request["model"])})


def _count_body(target: Target, request: dict[str, Any]) -> bytes:
    asked = {name: value for name, value in request.items() if name not in UNCOUNTED}
    made = target.server.dialect.build_request(
        {"max_tokens": 1024, **asked}, target.for_translator(request["model"])
    )
    return msgspec.json.encode({k: v for k, v in made.body.items() if k in COUNTED})
