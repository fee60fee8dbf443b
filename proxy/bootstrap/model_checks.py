"""What ``doctor`` finds out about one model of a Chat Completions server.

Each check sends one small request and reports what an agent would notice later: a small context
window, no token counts, calls that arrive as text, no vision.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import httpx

from proxy.gateway.snapshot.dialects import DIALECTS
from proxy.gateway.snapshot.endpoints import Endpoints, url_below, url_with_model
from proxy.models import Upstream
from translator.capabilities import PROFILES

from .finding import Finding

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
