"""POST /v1/messages/count_tokens: return the upstream's count if there is one, else an estimate.

An Anthropic upstream receives the client's request body, and its response is relayed unchanged.

The response with an estimate has the header ``x-bridge-estimate: true``. The estimate is too high
rather than too low: a client that assumes too few tokens exceeds the model's context window. The
header ``x-bridge-estimate-factor`` has the correction factor learned for the model.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import msgspec
from django.db import DatabaseError, connection
from django.utils.timezone import now
from yarl import URL

from proxy.gateway.admission.auth import authenticate
from proxy.gateway.admission.rate_limits import admit
from proxy.gateway.http.errors import Header, UpstreamFailed
from proxy.gateway.http.lenient_json import decode_json
from proxy.gateway.http.request_body import run_by_size
from proxy.gateway.http.request_headers import matching_headers
from proxy.gateway.request.attempts import AttemptRecord
from proxy.gateway.request.client_response import JSON
from proxy.gateway.snapshot.targets import Target, UpstreamServer
from proxy.gateway.upstream.client import post
from proxy.gateway.upstream.documents import load_pdf_texts, with_pdf_texts
from proxy.gateway.upstream.passthrough import (
    as_cloud_request,
    endpoint,
    forwarded_headers,
    patch_body,
    returned_headers,
)
from proxy.ledger.errors import LedgerUnavailable
from proxy.ledger.maintenance.token_calibration import factor_of
from translator.anthropic.request_validation import parse_count_tokens_request
from translator.anthropic.token_estimate import estimate_tokens
from translator.anthropic_upstream import DIALECT as ANTHROPIC
from translator.anthropic_upstream.clouds import count_body
from translator.errors import BadUpstream, TranslatorError
from translator.upstream_errors.mapping import NO_ROUTE
from translator.upstream_errors.refusal import Refusal

from .http_consumer import StreamingHttpConsumer
from .messages import choose_route_of, parse_body

log = logging.getLogger("proxy.gateway")

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
REFRESH_EVERY_S: Final = 600
RETRY_AFTER_S: Final = 10
"""A model without a factor is looked up again sooner: its first response gives one."""
LEARNING_RANGE: Final = timedelta(days=7)
# The number is limited, because with a target model "*" clients choose the names.
MAX_MODELS: Final = 1_024
ESTIMATED: Final[Header] = (b"x-bridge-estimate", b"true")


def compute_factor(upstream: str, model: str) -> float | None:
    """Compute a model's factor from the ledger, in a thread of its own."""
    try:
        return factor_of(upstream, model, now() - LEARNING_RANGE)
    finally:
        connection.close()  # close the database connection of this thread


class CorrectionFactors:
    """The correction factors of the models that clients used last."""

    def __init__(self, compute: Callable[[str, str], float | None] = compute_factor) -> None:
        self._compute = compute
        self._factors: dict[tuple[str, str], float | None] = {}
        self._computed_at: dict[tuple[str, str], float] = {}

    def __len__(self) -> int:
        return len(self._factors)

    async def factor(self, upstream: str, model: str) -> float | None:
        """Return the cached correction factor of a model, and refresh it when it is due.

        Requests that arrive during the refresh get the previous factor.
        """
        key, at = (upstream, model), time.monotonic()
        due_after = RETRY_AFTER_S if self._factors.get(key) is None else REFRESH_EVERY_S
        if key not in self._computed_at or at - self._computed_at[key] >= due_after:
            self._computed_at[key] = at
            if len(self._computed_at) > MAX_MODELS:
                # this drops the oldest factor, which is computed again when it is needed
                oldest = next(iter(self._computed_at))
                del self._computed_at[oldest]
                self._factors.pop(oldest, None)
            try:
                self._factors[key] = await asyncio.to_thread(self._compute, upstream, model)
            except (DatabaseError, LedgerUnavailable) as error:
                log.warning("estimates for %s %s stay as they are: %s", upstream, model, error)
        return self._factors.get(key)


correction_factors: Final = CorrectionFactors()


class CountTokensConsumer(StreamingHttpConsumer):
    cross_origin = True

    async def handle(self) -> None:
        caller = authenticate(self.head)
        body = await self.read_body()
        parsed = await parse_body(self, caller, body, parse_count_tokens_request)
        target = choose_route_of(self.head, caller, body, parsed).targets[0]
        request, fault, estimate = parsed
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
        factor = await correction_factors.factor(target.server.name, model)
        headers = [JSON, ESTIMATED]
        if factor is not None:
            estimate = math.ceil(estimate * factor)
            headers.append((b"x-bridge-estimate-factor", b"%.2f" % factor))
        await self.send_response(200, _response_body(estimate, request), tuple(headers))

    async def _upstream_count(
        self, target: Target, request: dict[str, Any], raw: bytes, key_id: int
    ) -> bytes | None:
        """Return a response body with the upstream's token count; None if there is no count."""
        server = target.server
        model = target.model_for(request["model"])
        url = server.count_url_for(model)
        missing_at = max(
            without_endpoint.get((server.name, name), -math.inf) for name in ("", model)
        )
        if url is None or missing_at > time.monotonic() - WITHOUT_ENDPOINT_S:
            return None
        headers: dict[str, str] = {}
        is_native = server.dialect_name == "anthropic"
        try:
            permitted = server.policies.filter_request(request, [])
            translated_for = target.for_translator(request["model"])
            if server.dialect_name == "responses":
                counted = {k: v for k, v in permitted.items() if k not in IGNORED_FIELDS}
                built = server.dialect.build_request(
                    {"max_tokens": 1024, **counted}, translated_for
                )
                body = msgspec.json.encode(
                    {k: v for k, v in built.body.items() if k in RESPONSES_COUNT_FIELDS}
                )
            else:  # built as for /v1/messages
                built = ANTHROPIC.build_request(permitted, translated_for)
                body = patch_body(raw, request, {**built.body, "model": model})
            if is_native:
                headers = server.policies.permitted_headers(forwarded_headers(self.head), [])
                if server.cloud is None or not server.cloud.version:
                    url = endpoint(url, self.head)
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
        headers = matching_headers(self.head.headers, server.forwarded_headers) | headers
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
