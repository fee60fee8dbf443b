"""The checks of upstreams by ``doctor``: address, key, clock, streaming, models and web search.

The checks of a model of a Chat Completions server each send one small request, and report what an
agent would notice later: a small context window, no token counts, calls that arrive as text, no
vision.
"""

import asyncio
import datetime as dt
import email.utils
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
import msgspec
from django.core.exceptions import ValidationError

from proxy.conf import conf
from proxy.gateway.credentials.credential import Credential, CredentialError, api_key_headers
from proxy.gateway.credentials.registry import source_for
from proxy.gateway.snapshot.dialects import DIALECTS
from proxy.gateway.snapshot.endpoints import MODEL_LIST_PATHS, Endpoints, url_below, url_with_model
from proxy.gateway.upstream.get_client import get_client
from proxy.gateway.upstream.probe import send_questions
from proxy.gateway.web_search import search
from proxy.models import ModelLesson, RouteTarget, Upstream
from proxy.models.setup.upstream_connection import ResolvedConnection, resolve_connection
from proxy.models.setup.upstreams import split_url
from proxy.secrets import ConfigError
from proxy.upstream_probe import QUESTIONS, USUAL
from proxy.url_hosts import host_error, is_private
from translator.anthropic_upstream.clouds import CLOUDS
from translator.capabilities import PROFILES, Profile, profile_with
from translator.request.body_edits import OUTPUT_LIMITS


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. ``ok``: whether the check passed; None: information only."""

    subject: str
    ok: bool | None
    text: str
    hint: str = ""


MIN_WINDOW: Final = 32_768
"""Tokens. Claude Code sends about 18,000 tokens before the first word of the user."""
WINDOW_FIELDS: Final = ("max_model_len", "n_ctx", "loaded_context_length", "context_length")
"""Fields with the size of the context window: of vLLM, llama.cpp, LM Studio and others."""
MAX_TOKENS: Final = 256
TOOL: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
QUESTION: Final = "What is the weather in Oslo? Use the tool get_weather."
PIXEL: Final = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9"
    "awAAAABJRU5ErkJggg=="
)
PICTURE: Final = (
    {"type": "text", "text": "Name the color."},
    {"type": "image_url", "image_url": {"url": PIXEL}},
)


def check_model(upstream: Upstream, model: str, client: httpx.Client) -> Iterator[Finding]:
    """Yield the findings about the model of a Chat Completions upstream; for other APIs, none."""
    if upstream.dialect != "chat":
        return
    subject = f"model {model} of {upstream}"
    yield from _check_window(subject, upstream, model, client)
    profile = PROFILES.get(upstream.profile, PROFILES["generic"])
    dialect, version = DIALECTS[upstream.dialect], upstream.api_version
    endpoints = Endpoints.of(upstream.base_url, dialect, profile, None, version)
    url = str(url_with_model(endpoints.whole, model))
    base = {"model": model, profile.max_tokens_field: MAX_TOKENS}
    answer = _ask(client, url, {**base, "messages": _user(QUESTION), "tools": [TOOL]})
    if answer is not None:
        yield _check_counts(subject, answer)
        yield _check_calls(subject, answer)
    if answer is not None and upstream.capabilities.get("images", profile.images):
        sees = _ask(client, url, {**base, "messages": _user(PICTURE)})
        hint = "" if sees is not None else "Set capabilities = { images = false } on the upstream."
        text = "accepts images" if sees is not None else "accepts no images"
        yield Finding(subject, ok=None, text=text, hint=hint)


def _check_window(
    subject: str, upstream: Upstream, model: str, client: httpx.Client
) -> Iterator[Finding]:
    models = url_below(upstream.base_url, "/models", upstream.api_version)
    window = _window_in_list(_json(client.get(models)), model)
    if not window:  # llama.cpp
        props = _json(client.get(f"{upstream.base_url.removesuffix('/v1')}/props"))
        settings = props.get("default_generation_settings")
        window = _window(settings if isinstance(settings, dict) else {})
    if window:
        is_small = window < MIN_WINDOW
        hint = "Agents need more: Claude Code sends 18,000 tokens before the first word."
        text = f"has a context window of {window:,} tokens"
        yield Finding(subject, ok=not is_small, text=text, hint=hint if is_small else "")


def _window_in_list(models: Mapping[str, Any], model: str) -> int:
    entries = models.get("data")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("id") == model:
            meta = entry.get("meta")
            return _window(entry) or _window(meta if isinstance(meta, dict) else {})
    return 0


def _window(fields: Mapping[str, Any]) -> int:
    counts = (fields.get(name) for name in WINDOW_FIELDS)
    return next((count for count in counts if type(count) is int and count > 0), 0)


def _check_counts(subject: str, answer: Mapping[str, Any]) -> Finding:
    usage = answer.get("usage")
    counted = isinstance(usage, dict) and bool(
        usage.get("prompt_tokens") and usage.get("completion_tokens")
    )
    text = "counts tokens" if counted else "reports no token counts: they are estimated"
    return Finding(subject, ok=None, text=text)


def _check_calls(subject: str, answer: Mapping[str, Any]) -> Finding:
    message = answer["choices"][0].get("message") or {}
    content = message.get("content")
    if message.get("tool_calls"):
        return Finding(subject, ok=True, text="calls tools")
    if isinstance(content, str) and "get_weather" in content and ("{" in content or "<" in content):
        hint = (
            "Enable the tool parser: --jinja for llama.cpp, --enable-auto-tool-choice and"
            " --tool-call-parser for vLLM, --tool-call-parser for SGLang."
        )
        return Finding(subject, ok=False, text="writes tool calls as text", hint=hint)
    return Finding(subject, ok=None, text="answered without calling the tool")


def _user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def _ask(client: httpx.Client, url: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the response to a request; None if it is not one."""
    answer = _json(client.post(url, json=body))
    choices = answer.get("choices")
    is_answer = isinstance(choices, list) and choices and isinstance(choices[0], dict)
    return answer if is_answer else None


def _json(response: httpx.Response) -> dict[str, Any]:
    try:
        value = response.json() if response.status_code == 200 else None
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


QUERY: Final = "Anthropic Messages API"
HINTS: Final = {
    "too_many_requests": "The endpoint limits its requests.",
    "unavailable": "See the log above, BRIDGE_WEB_SEARCH_FORMAT and BRIDGE_WEB_SEARCH_API_KEY; "
    "SearXNG answers with JSON only if its settings.yml lists the format json.",
}


def check_web_search() -> Iterator[Finding]:
    """Make one search, if an endpoint is set."""
    if not conf.web_search_url:
        return
    parts, host = split_url(conf.web_search_url)
    if parts.scheme == "http" and not is_private(host or ""):
        text = f"queries and the key are sent unencrypted to {host}"
        yield Finding("web search", ok=False, text=text, hint="Use https.")
    if error := host_error(host or ""):
        yield Finding("web search", ok=False, text=error, hint="Change BRIDGE_WEB_SEARCH_URL.")
        return
    found = asyncio.run(search(QUERY, {}))
    if isinstance(found, list):
        text = f"{host} returned {len(found)} results in the format {conf.web_search_format}"
        hint = "" if found else "Check BRIDGE_WEB_SEARCH_FORMAT."
        yield Finding("web search", ok=bool(found), text=text, hint=hint)
    else:
        code = found["error_code"]
        text = f"{host} returned no results: {code}"
        yield Finding("web search", ok=False, text=text, hint=HINTS.get(code, ""))


SKEW_S: Final = 30
BUFFERED_S: Final = 0.01
"""A stream that takes longer than this number of seconds is not buffered."""
EVENTS_PER_READ: Final = 2
"""A faster stream is buffered if its reads have more events than this on average: a server sends
each event as a chunk, which is a read of its own, and a proxy that buffers joins the chunks."""
TIMEOUT: Final = httpx.Timeout(30, connect=5)
PROMPT: Final = "Count from one to twenty in words."
STREAMED_TOKENS: Final = 64

BODIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "responses": {"input": PROMPT},
    "chat": {"messages": [{"role": "user", "content": PROMPT}]},
    "anthropic": {"messages": [{"role": "user", "content": PROMPT}]},
}


def check_upstream(upstream: Upstream, *, stream: bool) -> Iterator[Finding]:
    subject = f"upstream {upstream}"
    try:
        upstream.full_clean(validate_unique=False, validate_constraints=False)
        profile = profile_with(upstream.profile, upstream.capabilities)
        credential, source = _find_credential(upstream, profile)
        connection = resolve_connection(upstream.connection, upstream.base_url)
    except ValidationError as invalid:
        hint = "Correct it in bridge.toml, or in the admin."
        yield Finding(subject, ok=False, text=" ".join(invalid.messages), hint=hint)
        return
    except (ConfigError, CredentialError) as missing:
        hint = "serve needs it in its environment, and so does doctor to check it."
        yield Finding(subject, ok=False, text=str(missing), hint=hint)
        return
    yield from source
    if upstream.allow_http and upstream.base_url.startswith("http://"):
        hint = "Use https unless you trust the network."
        yield Finding(subject, ok=False, text="sends its key without encryption", hint=hint)
    yield from _describe(subject, connection)
    through, tls = connection.proxy, connection.tls
    with get_client(connection.headers, credential, through, tls, TIMEOUT) as client:
        try:
            yield from _check_requests(subject, upstream, profile, client, stream=stream)
        except httpx.HTTPError as error:
            text = f"{type(error).__name__}: {upstream.base_url} cannot be reached"
            yield Finding(subject, ok=False, text=text, hint=_hint(error))


def _describe(subject: str, connection: ResolvedConnection) -> Iterator[Finding]:
    """Report how the gateway connects, if it does not connect directly and with public CAs."""
    parts = []
    if connection.proxy is not None:
        user = " with credentials" if connection.proxy.authorization else ""
        parts.append(f"through the proxy {connection.proxy.host}:{connection.proxy.port}{user}")
    if connection.tls.ca:
        parts.append(f"trusts only the CAs in {connection.tls.ca}")
    if connection.tls.cert:
        parts.append(f"shows the certificate {connection.tls.cert}")
    if parts:
        yield Finding(subject, ok=True, text="connects " + ", ".join(parts))


def _hint(error: httpx.HTTPError) -> str:
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "Its certificate is not from a trusted CA; name the CA's file in connection.ca_file."
    if isinstance(error, httpx.ProxyError):
        return f"The proxy refused the connection ({text}); see connection.proxy_auth."
    return "Check the address, the HTTP proxy and the firewall."


def _check_requests(
    subject: str, upstream: Upstream, profile: Profile, client: httpx.Client, *, stream: bool
) -> Iterator[Finding]:
    is_cloud = upstream.dialect == "anthropic" and upstream.profile in CLOUDS
    yield from _check_reachable(subject, upstream, client, is_cloud=is_cloud)
    target = RouteTarget.objects.filter(upstream=upstream).exclude(model="").first()
    if stream and target is None:
        text = "streaming not checked: no route names a model"
        yield Finding(subject, ok=None, text=text)
    elif stream and target is not None and is_cloud:
        yield _check_cloud_model(subject, upstream, target.model)
    elif stream and target is not None:
        accepted: dict[str, Any] = {}
        if upstream.dialect != "anthropic":
            found, accepted = _check_usual_request(subject, upstream, target.model)
            yield found
        yield from _check_streaming(
            subject, upstream, profile, target.model, client, accepted=accepted
        )
        yield from check_model(upstream, target.model, client)
    yield from _describe_lessons(subject, upstream)


def _find_credential(upstream: Upstream, profile: Profile) -> tuple[Credential, list[Finding]]:
    """Return the credential, and a finding about one that expires.

    Raises ConfigError or CredentialError.
    """
    settings = upstream.credential_settings()
    if settings is None:
        key = upstream.credential()
        return Credential(headers=api_key_headers(upstream.dialect, profile, key)), []
    credential = source_for(settings, upstream, profile).fetch()
    expiry = "does not expire"
    if credential.expires_at is not None:
        at = dt.datetime.fromtimestamp(credential.expires_at, dt.UTC)
        minutes = (credential.expires_at - time.time()) / 60
        expiry = f"expires at {at:%Y-%m-%d %H:%M:%S} UTC, in {minutes:.0f} minutes"
    text = f"found: {credential.origin}; {expiry}"
    return credential, [Finding(f"credential of {upstream}", ok=True, text=text)]


def _check_cloud_model(subject: str, upstream: Upstream, model: str) -> Finding:
    """Send one streamed request as the gateway does, because the cloud has its own protocol."""
    [found] = send_questions(upstream, model, QUESTIONS[:1])
    text = f"{model}: {found.summary}"
    if found.ok and found.first_ms is not None:
        text += f" The first bytes came after {found.first_ms:.0f} ms, in {found.reads} reads."
    hint = CLOUD_HINTS.get(found.status or 0, "") if not found.ok else ""
    return Finding(subject, ok=found.ok, text=text, hint=hint)


CLOUD_HINTS: Final = {
    400: "The model's name may be wrong for this cloud; see docs/guides/clouds.md.",
    401: "The cloud rejects the credential.",
    403: "The role lacks the permission to call the model; see docs/guides/clouds.md.",
    404: "The model does not exist in this region, or access to it was not requested.",
}


def _check_usual_request(
    subject: str, upstream: Upstream, model: str
) -> tuple[Finding, dict[str, Any]]:
    """Send what an agent's request becomes, and report what had to be changed.

    Also return the body that the upstream accepted; {} if it accepted none.
    """
    [found] = send_questions(upstream, model, [USUAL])
    accepted = msgspec.json.decode(found.accepted) if found.accepted else {}
    if not accepted:
        hint = "“Test” on the page of the upstream in the admin shows request and response."
        text = f"{model} refuses an agent's request: {found.summary}"
        return Finding(subject, ok=False, text=text, hint=hint), accepted
    text = f"{model} accepts what the gateway sends for agents"
    if found.repairs:
        text = f"{model} accepts an agent's request after changes: {'; '.join(found.repairs)}"
        hint = "The gateway learns it by itself; model_capabilities spares the first retries."
        return Finding(subject, ok=None, text=text, hint=hint), accepted
    return Finding(subject, ok=True, text=text), accepted


def _describe_lessons(subject: str, upstream: Upstream) -> Iterator[Finding]:
    """Report what requests have shown about the upstream's models, as the gateway remembers it."""
    for lesson in ModelLesson.current().filter(upstream=upstream):
        text = (
            f"learnt of {lesson.model}: {lesson.change} ({lesson.words}), {lesson.since:%F %H:%M}"
        )
        yield Finding(subject, ok=None, text=text)


def _check_reachable(
    subject: str, upstream: Upstream, client: httpx.Client, *, is_cloud: bool
) -> Iterator[Finding]:
    path, version = MODEL_LIST_PATHS[upstream.dialect], upstream.api_version
    url = upstream.base_url if is_cloud else url_below(upstream.base_url, path, version)
    response = client.get(url)
    # A cloud has no list of models here: any answer shows that it is reachable.
    rejected = response.status_code in {401, 403} and not is_cloud
    hint = "The upstream rejects the key; see api_key." if rejected else ""
    # Several servers have no list of models, which does not mean that other endpoints are missing.
    has_no_list = is_cloud or response.status_code in {404, 405, 501}
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
    subject: str,
    upstream: Upstream,
    profile: Profile,
    model: str,
    client: httpx.Client,
    *,
    accepted: Mapping[str, Any],
) -> Iterator[Finding]:
    """Request one short stream, to detect a proxy that buffers between upstream and gateway.

    ``accepted``: a body that the upstream has accepted; without one, the request is a bare one.
    """
    body = dict(accepted) or {"model": model, "stream": True, **BODIES[upstream.dialect]}
    sent = [str(name) for name in OUTPUT_LIMITS if name in body]
    body[sent[0] if sent else _limit_field(upstream)] = STREAMED_TOKENS
    arrivals, events = [], 0
    dialect, version = DIALECTS[upstream.dialect], upstream.api_version
    endpoints = Endpoints.of(upstream.base_url, dialect, profile, None, version)
    url = str(url_with_model(endpoints.stream, model))
    with client.stream("POST", url, json=body) as response:
        if response.status_code != 200:
            text = f"a short stream from {model} gets status {response.status_code}"
            hint = "“Test” on the page of the upstream in the admin shows its error."
            yield Finding(subject, ok=False, text=text, hint=hint)
            return
        for read in response.iter_bytes():
            arrivals.append(time.monotonic())
            events += read.count(b"data:")
    spread = arrivals[-1] - arrivals[0] if arrivals else 0.0
    text = f"{model} sent a stream in {len(arrivals)} reads over {spread:.2f} s"
    is_fast = spread < BUFFERED_S
    buffered = len(arrivals) < 2 or (is_fast and events > EVENTS_PER_READ * len(arrivals))
    hint = "Unless the model is extremely fast, a proxy before it buffers; see docs/operate.md."
    yield Finding(subject, ok=not buffered, text=text, hint=hint if buffered else "")


def _limit_field(upstream: Upstream) -> str:
    if upstream.dialect == "responses":
        return "max_output_tokens"
    profile = PROFILES.get(upstream.profile, PROFILES["generic"])
    return profile.max_tokens_field if upstream.dialect == "chat" else "max_tokens"
