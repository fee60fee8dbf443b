"""An exchange on a clock that only the test moves, and what stands in its records."""

from types import SimpleNamespace

from proxy.gateway.base import StreamingHttpConsumer
from proxy.gateway.dialects import DIALECTS
from proxy.gateway.directory import NO_LIMITS, Caller, Globs, TeamEntry
from proxy.gateway.head import Head
from proxy.gateway.ledger import Exchange
from proxy.gateway.refusals import Refusal
from proxy.gateway.targets import Server, Target, Timeouts
from proxy.gateway.upstream import Dial
from proxy.gateway.watch import Watch
from translator.dialect import AnswerContext, UpstreamError
from translator.profiles import profile_with

LATE = UpstreamError(status=504, error_type="timeout_error", message="m" * 3_000)
REFUSED = Refusal(429, "rate_limit_error", "r" * 3_000, source="gateway")
HEADERS = [
    (b"user-agent", b"claude-cli/2.1.329 (external, cli)"),
    (b"anthropic-version", b"2024-01-01"),
    (b"anthropic-beta", b"b-2,a-1"),
    (b"x-gateway-tags", b"team=blue"),
    (b"x-claude-code-session-id", b"s" * 201),
    (b"x-claude-code-agent-id", b"agent-1"),
    (b"x-claude-code-parent-agent-id", b"agent-0"),
    (b"traceparent", b"t" * 101),
]
ASKED = {
    "model": "m" * 201, "stream": True, "max_tokens": 9, "temperature": 0, "top_p": 1, "top_k": 2,
    "messages": [{"role": "user", "content": "Hi."}] * 3,
    "metadata": {"user_id": '{"session_id": "in_the_body"}'},
}  # fmt: skip
PIECE = {"id": "c", "object": "chat.completion.chunk", "model": "gpt-x"}
CALLED = {"index": 0, "id": "call_1", "function": {"name": "f", "arguments": "{}"}}
SAID = [
    {**PIECE, "choices": [{"index": 0, "delta": {"reasoning_content": "Hm."}}]},
    {**PIECE, "choices": [{"index": 0, "delta": {"content": "Well: é."}}]},
    {**PIECE, "choices": [{"index": 0, "delta": {"tool_calls": [CALLED]}}]},
]
USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
END = {**PIECE, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
SERVER = Server.of(
    name="up", dialect=DIALECTS["chat"], dialect_name="chat", base_url="https://up.test/v1",
    secret="sk-" + "0" * 40, profile=profile_with("vllm", {}), timeouts=Timeouts(), extra_body={},
    capabilities={"seed": True},
)  # fmt: skip
TARGET = Target(server=SERVER, model="gpt-x")
OF_TARGET = {
    "upstream": "up", "model": "gpt-x", "dialect": "chat", "profile": "vllm",
    "capabilities": {"seed": True},
}  # fmt: skip


class Asked(Exchange):
    """An exchange of a request that came at second 100 of a clock that only ``at`` moves."""

    def __init__(self, headers=HEADERS, *, store_full: bool = True) -> None:
        self.at = 100.0
        consumer = StreamingHttpConsumer()
        consumer.head = Head({"path": "/", "headers": headers, "client": ("192.0.2.7", 1)})
        loop = SimpleNamespace(time=lambda: self.at, call_soon_threadsafe=lambda work: work())
        consumer.watch = Watch(consumer.stop, loop)
        consumer.began, consumer.begun, consumer.stopped = 100.0, False, None
        consumer.delivered, consumer.response_bytes = True, 321
        super().__init__(consumer, _caller(store_full))

    def dial(self, at: float, target: Target = TARGET) -> None:
        self.at = at
        stream = DIALECTS["chat"].stream(AnswerContext(message_id="msg_1", model="claude-x"))
        self.dialled(Dial(target.server.name, target.model, at, status=200), target, stream)

    def hear(self, *events) -> None:
        self.fold.feed(*self.stream.feed(*events))


def _caller(store_full: bool) -> Caller:
    team = TeamEntry(name="t", store_full=store_full, models=Globs(), limits=NO_LIMITS)
    return Caller(
        key_id=7, key_name="k", meter="t/k", team=team, user="ada", scopes=frozenset({"messages"}),
        models=Globs(), limits=NO_LIMITS, ip_allow=(), strict=False, events=frozenset(),
    )  # fmt: skip
