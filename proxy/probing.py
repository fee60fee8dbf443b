"""Asking an upstream two small questions, to see with one's own eyes what it answers.

Windows speak no HTTP, and the gateway knows no windows: it does the asking, and is named here by
its dotted path, as Django names its backends.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from django.utils.module_loading import import_string

from proxy.models import Upstream

PROBER: Final = "proxy.gateway.probe.probe"
LONGEST_S: Final = 30.0
"""A probe that takes longer is given up."""

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
    """``request`` is an Anthropic request, whose model is filled in."""

    name: str
    title: str
    request: Mapping[str, Any]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What became of one question. Texts are the other side's words, cut and without our secret."""

    question: Question
    ok: bool
    says: str
    """One sentence for a person."""
    status: int | None = None
    head_ms: float | None = None
    """Until the head of the answer was there."""
    first_ms: float | None = None
    """Until its first bytes were."""
    total_ms: float | None = None
    reads: int = 0
    sent: str = ""
    """The body that was sent."""
    heard: str = ""
    """What came back, as it came."""
    told: str = ""
    """What a client would have been told."""
    answer: str = ""
    """The words and calls of the answer."""


def probe(upstream: Upstream, model: str) -> Sequence[Finding]:
    """Ask every question, one after the other; takes seconds, and money where tokens cost some.

    Raises ValidationError for an upstream that may not be asked at all, ConfigError for a secret
    that cannot be had.
    """
    ask = cast("Callable[[Upstream, str], Sequence[Finding]]", import_string(PROBER))
    return ask(upstream, model)
