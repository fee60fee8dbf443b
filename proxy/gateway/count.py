"""POST /v1/messages/count_tokens: from the upstream where it can count, else an estimate.

An estimate says so in ``x-bridge-estimate: true``; it errs high, because a client that believes
in too few tokens overruns the model's window. ``x-bridge-estimate-factor`` tells what was learned
of this model's tokenizer.
"""

import asyncio
from typing import Any, Final

import msgspec
from yarl import URL

from translator.anthropic.request import parse_count_tokens_request
from translator.errors import BadUpstream, TranslatorError
from translator.estimate import estimate_tokens

from .auth import authenticate
from .base import JSON, StreamingHttpConsumer
from .consumer import parsed
from .decoding import decode_json
from .estimates import corrected
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

_without_endpoint: set[str] = set()
"""Upstreams that answered 404 or 405: not asked again while this process lives."""


class CountTokensConsumer(StreamingHttpConsumer):
    async def handle(self) -> None:
        caller = authenticate(self.head)
        body = await self.read_body()
        request = await parsed(self.head, caller, body, parse_count_tokens_request)
        route = choose_route(caller, request["model"])
        async with admit(caller, 0) as seat:
            self.extra_headers += seat.headers
            counted = await self._counted(route.targets[0], request, body)
        if counted is not None:
            await self._answer(counted)
            return
        target = route.targets[0]
        model = target.model_for(request["model"])
        estimate = estimate_tokens(request)
        tokens, headers = await corrected(target.server.name, model, estimate)
        await self._answer(tokens, *headers)

    async def _answer(self, tokens: int, *headers: tuple[bytes, bytes]) -> None:
        await self.respond(200, msgspec.json.encode({"input_tokens": tokens}), (JSON, *headers))

    async def _counted(self, target: Target, request: dict[str, Any], raw: bytes) -> int | None:
        """The upstream's own count; None when it cannot or does not tell."""
        server = target.server
        if server.count_url is None or server.name in _without_endpoint:
            return None
        try:
            body = _count_body(target, server.policies.permitted(request, []))
            async with asyncio.timeout(COUNT_WITHIN_S):
                return await self._ask(target, server.count_url, body)
        except (UpstreamFailed, TranslatorError, TimeoutError):
            return None

    async def _ask(self, target: Target, url: URL, body: bytes) -> int | None:
        server = target.server
        version = {"anthropic-version": self.head.version}
        headers = version if server.dialect_name == "anthropic" else {}
        dial = Dial(server.name, target.model, self.watch.now())
        call = await post(server, url, body, headers, dial)
        try:
            if call.status in {404, 405}:
                _without_endpoint.add(server.name)
            answer = decode_json(await call.beginning()) if call.status == 200 else None
        except BadUpstream:
            return None
        finally:
            call.close()
        tokens = answer.get("input_tokens") if isinstance(answer, dict) else None
        return tokens if isinstance(tokens, int) and tokens >= 0 else None


def _count_body(target: Target, request: dict[str, Any]) -> bytes:
    model = target.model_for(request["model"])
    if target.server.dialect_name == "anthropic":
        return msgspec.json.encode({**request, "model": model})
    made = target.server.dialect.build_request(
        {"max_tokens": 1024, **request}, target.for_translator(request["model"])
    )
    return msgspec.json.encode({k: v for k, v in made.body.items() if k in COUNTED})
