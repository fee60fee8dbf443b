"""The checks of upstreams by ``doctor``: address, key, clock, streaming and model."""

import email.utils
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import httpx
from django.core.exceptions import ValidationError

from proxy.models import RouteTarget, Upstream
from proxy.models.setup.upstream_connection import (
    ResolvedConnection,
    resolve_connection,
    tls_context,
)
from proxy.secrets import ConfigError
from translator.capabilities import PROFILES

from .finding import Finding
from .model_checks import check_model

SKEW_S: Final = 30
BUFFERED_S: Final = 0.01
"""Seconds; if all reads of a stream arrive within this time, a proxy on the way buffered them."""
TIMEOUT: Final = httpx.Timeout(30, connect=5)
PROMPT: Final = "Count from one to twenty in words."
STREAMED_TOKENS: Final = 64

BODIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "responses": {"input": PROMPT},
    "chat": {"messages": [{"role": "user", "content": PROMPT}]},
    "anthropic": {"messages": [{"role": "user", "content": PROMPT}]},
}
ENDPOINTS: Final = {
    "responses": ("/models", "/responses"),
    "chat": ("/models", "/chat/completions"),
    "anthropic": ("/v1/models", "/v1/messages"),
}


def check_upstream(upstream: Upstream, *, stream: bool) -> Iterator[Finding]:
    subject = f"upstream {upstream}"
    try:
        upstream.clean()
        secret = upstream.credential()
        way = resolve_connection(upstream.connection, upstream.base_url)
    except ValidationError as invalid:
        yield Finding(subject, ok=False, text=" ".join(invalid.messages))
        return
    except ConfigError as missing:
        hint = "serve needs it in its environment, and so does doctor to check it."
        yield Finding(subject, ok=False, text=str(missing), hint=hint)
        return
    if upstream.allow_http and upstream.base_url.startswith("http://"):
        hint = "Use https unless you trust the network."
        yield Finding(subject, ok=False, text="sends its key without encryption", hint=hint)
    yield from _describe(subject, way)
    headers = {**way.headers, **_headers(upstream, secret)}
    with _client(way, headers) as client:
        try:
            yield from _check_reachable(subject, upstream, client)
            target = RouteTarget.objects.filter(upstream=upstream).exclude(model="").first()
            if stream and target is None:
                text = "streaming not checked: no route names a model"
                yield Finding(subject, ok=None, text=text)
            elif stream and target is not None:
                yield from _check_streaming(subject, upstream, target.model, client)
                yield from check_model(upstream, target.model, client)
        except httpx.HTTPError as error:
            text = f"{type(error).__name__}: {upstream.base_url} cannot be reached"
            yield Finding(subject, ok=False, text=text, hint=_hint(error))


def _client(way: ResolvedConnection, headers: Mapping[str, str]) -> httpx.Client:
    """Return an HTTP client that connects as the gateway does."""
    proxy = None
    if way.proxy is not None:
        host = f"[{way.proxy.host}]" if ":" in way.proxy.host else way.proxy.host
        fields = {"proxy-authorization": way.proxy.authorization} if way.proxy.authorization else {}
        proxy = httpx.Proxy(f"http://{host}:{way.proxy.port}", headers=fields)
    context = tls_context(way.tls)
    # The environment's proxies are in ``way`` already, which also knows the upstream's own.
    return httpx.Client(
        headers=headers, timeout=TIMEOUT, proxy=proxy, verify=context, trust_env=False
    )


def _describe(subject: str, way: ResolvedConnection) -> Iterator[Finding]:
    """Report how the gateway connects, if it does not connect directly and with public CAs."""
    parts = []
    if way.proxy is not None:
        user = " with credentials" if way.proxy.authorization else ""
        parts.append(f"through the proxy {way.proxy.host}:{way.proxy.port}{user}")
    if way.tls.ca:
        parts.append(f"trusts only the CAs in {way.tls.ca}")
    if way.tls.cert:
        parts.append(f"shows the certificate {way.tls.cert}")
    if parts:
        yield Finding(subject, ok=True, text="connects " + ", ".join(parts))


def _hint(error: httpx.HTTPError) -> str:
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "Its certificate is not from a trusted CA; name the CA's file in connection.ca_file."
    if isinstance(error, httpx.ProxyError):
        return f"The proxy refused the connection ({text}); see connection.proxy_auth."
    return "Check the address, the HTTP proxy and the firewall."


def _headers(upstream: Upstream, secret: str) -> dict[str, str]:
    if not secret:
        return {}
    if upstream.dialect == "anthropic":
        return {"x-api-key": secret, "anthropic-version": "2023-06-01"}
    return {"authorization": f"Bearer {secret}"}


def _check_reachable(subject: str, upstream: Upstream, client: httpx.Client) -> Iterator[Finding]:
    response = client.get(upstream.base_url + ENDPOINTS[upstream.dialect][0])
    rejected = response.status_code in {401, 403}
    hint = "The upstream rejects the key; see api_key." if rejected else ""
    # Several servers have no list of models, which does not mean that other endpoints are missing.
    has_no_list = response.status_code in {404, 405, 501}
    ok = has_no_list or (not rejected and response.status_code < 500)
    text = f"reachable, status {response.status_code}"
    if has_no_list:
        text = f"reachable, has no list of models (status {response.status_code})"
    yield Finding(subject, ok=ok, text=text, hint=hint)
    upstream_time = email.utils.parsedate_tz(response.headers.get("date", ""))
    if upstream_time:
        skew = abs(email.utils.mktime_tz(upstream_time) - time.time())
        text = f"differs from {upstream}'s by {skew:.0f} s"
        hint = "Run NTP: budget periods, expiry of keys and ids depend on the clock."
        yield Finding("clock", ok=skew < SKEW_S, text=text, hint=hint if skew >= SKEW_S else "")


def _check_streaming(
    subject: str, upstream: Upstream, model: str, client: httpx.Client
) -> Iterator[Finding]:
    """Request one short stream, to detect a proxy that buffers between upstream and gateway."""
    body = {"model": model, "stream": True, **BODIES[upstream.dialect]}
    body[_limit_field(upstream)] = STREAMED_TOKENS
    arrivals = []
    url = upstream.base_url + ENDPOINTS[upstream.dialect][1]
    with client.stream("POST", url, json=body) as response:
        if response.status_code != 200:
            text = f"a short stream from {model} gets status {response.status_code}"
            yield Finding(subject, ok=False, text=text)
            return
        for _ in response.iter_bytes():
            arrivals.append(time.monotonic())  # noqa: PERF401 - each read has its own time
    spread = arrivals[-1] - arrivals[0] if arrivals else 0.0
    text = f"{model} sent a stream in {len(arrivals)} reads over {spread:.2f} s"
    buffered = len(arrivals) < 2 or spread < BUFFERED_S
    hint = "A proxy on the way buffers; see docs/operate.md." if buffered else ""
    yield Finding(subject, ok=not buffered, text=text, hint=hint)


def _limit_field(upstream: Upstream) -> str:
    if upstream.dialect == "responses":
        return "max_output_tokens"
    profile = PROFILES.get(upstream.profile, PROFILES["generic"])
    return profile.max_tokens_field if upstream.dialect == "chat" else "max_tokens"
