"""The interface of the upstream probe, which sends a few small requests to an upstream.

Admin pages send no HTTP requests and do not import the gateway. So the gateway implements the
probe, and this module imports the implementation by its dotted path, like a Django backend.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from django.utils.module_loading import import_string

from proxy.models import Upstream

PROBER: Final = "proxy.gateway.upstream.probe.probe"
LONGEST_S: Final = 30.0
"""The time limit of one request of the probe."""

TOOL: Final[Mapping[str, Any]] = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request of the probe: an Anthropic request without ``model``, which is added later."""

    name: str
    title: str
    request: Mapping[str, Any]
    capability: str = ""
    """The capability that the request tries out. A refusal is no failure then."""


QUESTIONS: Final[Sequence[Question]] = (
    Question(
        name="text",
        title="A few words, streamed",
        request={
            "max_tokens": 1024,
            "messages": [{"role": "user", "content": "Answer with the one word: ready"}],
        },
    ),
    Question(
        name="tool",
        title="A tool call, streamed",
        request={
            "max_tokens": 1024,
            "tools": [TOOL],
            "messages": [{"role": "user", "content": "What is the weather in Oslo? Use the tool."}],
        },
    ),
)


USUAL: Final = Question(
    name="usual",
    title="What a coding agent sends",
    request={
        "max_tokens": 1024,
        "system": "You are a careful assistant.",
        "metadata": {"user_id": "user_0_account__session_probe"},
        "temperature": 1,
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "tools": [TOOL],
        "messages": [{"role": "user", "content": "Count from one to twenty in words."}],
    },
)
"""For translated upstreams: with the fields that the gateway adds to the requests of agents, such
as ``include``, an effort and a cache key. What is refused is left out, as for clients."""

UNSIGNED_THINKING: Final = Question(
    name="unsigned_thinking",
    title="Thinking without a signature",
    capability="unsigned_thinking",
    request={
        "max_tokens": 1024,
        "messages": [
            {"role": "user", "content": "Answer with the one word: ready"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "One word is wanted.", "signature": ""},
                    {"type": "text", "text": "ready"},
                ],
            },
            {"role": "user", "content": "Again, please."},
        ],
    },
)
"""For upstreams with Anthropic's API only: Anthropic itself refuses this request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one probe request.

    Texts are truncated and do not contain the upstream's secret.
    """

    question: Question
    ok: bool
    summary: str
    """The result in one sentence."""
    status: int | None = None
    head_ms: float | None = None
    """Milliseconds until the response headers arrived."""
    first_ms: float | None = None
    """Milliseconds until the first bytes of the response body arrived."""
    total_ms: float | None = None
    reads: int = 0
    sent: str = ""
    """The request body as sent to the upstream."""
    received: str = ""
    """The response body as received from the upstream."""
    client_events: str = ""
    """The SSE events that a client of the gateway would receive."""
    answer: str = ""
    """The text and the tool calls in the response."""
    repairs: Sequence[str] = ()
    """What was changed after refusals, with the upstream's words, as ``omit store (unknown)``."""
    accepted: bytes = b""
    """The whole body that the upstream accepted; empty if it accepted none."""


def probe(upstream: Upstream, model: str) -> Sequence[Finding]:
    """Send every ``Question`` that suits the upstream's API in turn.

    This blocks for seconds, and the upstream may bill the tokens. Raises ValidationError if the
    upstream's address is forbidden, and ConfigError if its secret cannot be read.
    """
    prober = cast("Callable[[Upstream, str], Sequence[Finding]]", import_string(PROBER))
    return prober(upstream, model)
