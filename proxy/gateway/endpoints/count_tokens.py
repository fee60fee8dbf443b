"""POST /v1/messages/count_tokens: return the upstream's count if there is one, else an estimate.

An Anthropic upstream receives the client's request body, and its response is relayed unchanged.

The response with an estimate has the header ``x-bridge-estimate: true``. The estimate is too high
rather than too low: a client that assumes too few tokens exceeds the model's context window. The
header ``x-bridge-estimate-factor`` has the correction factor learned for the model.
"""

import asyncio
import time
from typing import Any, Final

import msgspec
from yarl import URL

from proxy.gateway.admission.auth import authenticate
from proxy.gateway.admission.route_selection import choose_route
from proxy.gateway.admission.shared_rate_limits import admit
from proxy.gateway.exchange.attempt_record import AttemptRecord
from proxy.gateway.exchange.token_estimates import calibrated_estimate
from proxy.gateway.http.body_memory import run_by_size
from proxy.gateway.http.errors import UpstreamFailed
from proxy.gateway.http.lenient_json import decode_json
from proxy.gateway.http.request_headers import matching_headers
from proxy.gateway.snapshot.targets import Target, UpstreamServer
from proxy.gateway.upstream.client import post
from proxy.gateway.upstream.cloud_requests import as_cloud_request
from proxy.gateway.upstream.documents import load_pdf_texts, with_pdf_texts
from proxy.gateway.upstream.passthrough import (
    endpoint,
    forwarded_headers,
    patch_body,
    returned_headers,
)
from translator.anthropic.request_validation import parse_count_tokens_request
from translator.anthropic.token_estimate import estimate_tokens
from translator.anthropic_upstream import DIALECT as ANTHROPIC
from translator.anthropic_upstream.clouds import count_body
from translator.errors import BadUpstream, TranslatorError
from translator.upstream_errors.mapping import NO_ROUTE
from translator.upstream_errors.refusal import Refusal

from .http_consumer import JSON, StreamingHttpConsumer
from .messages import native_targets, parse_body, reject_without_native_target, request_facts

COUNT_TIMEOUT_S: Final = 10
RESPONSES_COUNT_FIELDS: Final = frozenset(
    {"input", "instructions", "model", "parallel_tool_calls", "reasoning", "text", "tool_choice",
     "tools"}
)  # fmt: skip
"""The request fields that the token counting endpoint of the Responses API accepts. It rejects
others."""
IGNORED_FIELDS: Final = frozenset({"compaction", "inference_geo"})
"""Request fields that are removed before counting: the count does not depend on them, and the
translator may reject them."""

WITHOUT_ENDPOINT_S: Final = 3_600
MAX_WITHOUT_ENDPOINT: Final = 1_024  # limited, because clients choose the names of models

without_endpoint: dict[tuple[str, str], float] = {}
"""Upstreams, and models of upstreams, whose counting endpoint does not exist, and since when
(monotonic). With the model "", the upstream has said that it does not know the path; a 404 in other
words may be about the model alone. This process does not call the endpoint for an hour."""


class CountTokensConsumer(StreamingHttpConsumer):
    cross_origin = True

    async def handle(self) -> None:
        caller = authenticate(self.headers)
        body = await self.read_body()
        parsed = await parse_body(self, caller, body, parse_count_tokens_request)
        reject_without_native_target(self.headers, caller, body, parsed)
        request, fault, estimate = parsed
        facts = request_facts(self.headers, estimate)
        route = choose_route(caller, request["model"], facts=facts)
        target = (route.targets if fault is None else native_targets(route))[0]
        async with admit(caller, 0, model=request["model"]) as slot:
            self.extra_headers += slot.headers
            response = await self._upstream_count(target, request, body, caller.key_id)
        if response is not None:
            await self.send_response(200, response)
            return
        if fault is not None:
            raise fault
        texts = await load_pdf_texts(body, request, target, caller.team.id)
        if texts:
            estimate = estimate_tokens(with_pdf_texts(request, texts, []))
        model = target.model_for(request["model"])
        tokens, headers = await calibrated_estimate(target.server.name, model, estimate)
        await self.send_response(200, _response_body(tokens, request), (JSON, *headers))

    async def _upstream_count(
        self, target: Target, request: dict[str, Any], raw: bytes, key_id: int
    ) -> bytes | None:
        """Return a response body with the upstream's token count; None if there is no count."""
        server = target.server
        model = target.model_for(request["model"])
        url = server.count_url_for(model)
        if url is None or _is_missing(server.name, model):
            return None
        headers: dict[str, str] = {}
        is_native = server.dialect_name == "anthropic"
        try:
            permitted = server.policies.filter_request(request, [])
            if server.dialect_name == "responses":
                body = _responses_body(target, permitted)
            else:
                body = _native_body(target, request, permitted, raw)
            if is_native:
                headers = server.policies.permitted_headers(forwarded_headers(self.headers), [])
                if server.cloud is None or not server.cloud.version:
                    url = endpoint(url, self.headers)
                body, headers = _cloud_body(server, body, headers)
            async with asyncio.timeout(COUNT_TIMEOUT_S):
                answer = await self._request_count(target, model, url, body, headers, key_id=key_id)
        except (UpstreamFailed, TranslatorError, TimeoutError):
            return None
        tokens = _parse_count(answer)
        if answer is None or tokens is None:
            return None
        is_whole = is_native and (server.cloud is None or not server.cloud.version)
        return answer if is_whole else _response_body(tokens, request)

    async def _request_count(
        self,
        target: Target,
        model: str,
        url: URL,
        body: bytes,
        headers: dict[str, str],
        *,
        key_id: int,
    ) -> bytes | None:
        """Call the counting endpoint.

        Return the body of a 200 response, else None; remember a 404 or 405.
        """
        server = target.server
        headers = matching_headers(self.headers.headers, server.forwarded_headers) | headers
        attempt = AttemptRecord(server.name, target.model, self.deadlines.now())
        call = await post(server, url, body, headers, attempt, key_id=key_id)
        try:
            if call.status in {404, 405}:
                raw = await call.read_error_body()
                await run_by_size(
                    body, _remember_missing, server.name, model, call.status, raw, body
                )
            if call.status != 200:
                return None
            if server.dialect_name == "anthropic":
                returned = returned_headers(call, self.extra_headers).items()
                self.extra_headers += [
                    (name.encode("latin-1"), text.encode("latin-1")) for name, text in returned
                ]
            return await call.read_error_body()
        finally:
            call.close()


def _is_missing(upstream: str, model: str) -> bool:
    oldest = time.monotonic() - WITHOUT_ENDPOINT_S
    return any(
        without_endpoint.get((upstream, name), oldest) > oldest
        for name in dict.fromkeys(("", model))
    )


def _remember_missing(upstream: str, model: str, status: int, raw: bytes, body: bytes) -> None:
    """Remember a missing endpoint: for the upstream if it says so of the path, else for the model.

    A client chooses the model's name, so words that the request contains prove nothing.
    """
    try:
        refusal = Refusal(decode_json(body), status, decode_json(raw))
    except BadUpstream:
        names_path = status == 405
    else:
        text = refusal.raw.lower()
        names_model = "model" in text or model.lower() in text
        names_path = status == 405 or (not names_model and bool(NO_ROUTE.match(refusal.words)))
    key = (upstream, "" if names_path else model)
    without_endpoint.pop(key, None)
    without_endpoint[key] = time.monotonic()
    if len(without_endpoint) > MAX_WITHOUT_ENDPOINT:
        del without_endpoint[next(iter(without_endpoint))]


def _response_body(tokens: int, request: dict[str, Any]) -> bytes:
    """Return the response body.

    With context management it also has ``original_input_tokens``, which is the same count.
    """
    answer: dict[str, Any] = {"input_tokens": tokens}
    if request.get("context_management"):
        answer["context_management"] = {"original_input_tokens": tokens}
    return msgspec.json.encode(answer)


def _parse_count(answer: bytes | None) -> int | None:
    try:
        value = decode_json(answer) if answer is not None else None
    except BadUpstream:
        return None
    if not isinstance(value, dict):
        return None
    tokens = value.get("input_tokens", value.get("inputTokens"))  # the latter from Amazon
    return tokens if type(tokens) is int and tokens >= 0 else None


def _native_body(
    target: Target, request: dict[str, Any], permitted: dict[str, Any], raw: bytes
) -> bytes:
    """Return the body for a counting endpoint of Anthropic's API, built as for /v1/messages."""
    built = ANTHROPIC.build_request(permitted, target.for_translator(request["model"]))
    return patch_body(raw, request, {**built.body, "model": target.model_for(request["model"])})


def _cloud_body(
    server: UpstreamServer, body: bytes, headers: dict[str, str]
) -> tuple[bytes, dict[str, str]]:
    """Return body and headers as the upstream's cloud counts them; unchanged if it is no cloud."""
    if server.cloud is None:
        return body, headers
    fields = decode_json(body)
    sent, headers = as_cloud_request(server, fields, headers, [])
    if server.cloud.model_in_path and "{model}" not in server.cloud.count_path:
        sent["model"] = fields["model"]  # Vertex AI has one endpoint for all models
    return count_body(msgspec.json.encode(sent), server.cloud), headers


def _responses_body(target: Target, request: dict[str, Any]) -> bytes:
    fields = {name: value for name, value in request.items() if name not in IGNORED_FIELDS}
    built = target.server.dialect.build_request(
        {"max_tokens": 1024, **fields}, target.for_translator(request["model"])
    )
    return msgspec.json.encode({k: v for k, v in built.body.items() if k in RESPONSES_COUNT_FIELDS})
