"""A ``Request`` with a clock that the test sets, and the values of its records."""

from types import SimpleNamespace

from proxy.gateway.endpoints.http_consumer import StreamingHttpConsumer
from proxy.gateway.http.deadlines import Deadlines
from proxy.gateway.http.errors import HttpError
from proxy.gateway.http.request_headers import RequestHeaders
from proxy.gateway.request.attempts import AttemptRecord
from proxy.gateway.request.request import Request
from proxy.gateway.snapshot.config_snapshot import NO_LIMITS, Caller, ModelAllowList, TeamEntry
from proxy.gateway.snapshot.dialects import DIALECTS
from proxy.gateway.snapshot.targets import Target, UpstreamServer
from proxy.ledger.recorder import Recorder
from proxy.models.setup.columns import Timeouts
from translator.capabilities import profile_with
from translator.dialect import ResponseContext, UpstreamError

LATE = UpstreamError(status=504, error_type="timeout_error", message="m" * 3_000)
REFUSED = HttpError(429, "rate_limit_error", "r" * 3_000, source="gateway")
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
REQUEST = {
    "model": "m" * 201, "stream": True, "max_tokens": 9, "temperature": 0, "top_p": 1, "top_k": 2,
    "messages": [{"role": "user", "content": "Hi."}] * 3,
    "metadata": {"user_id": '{"session_id": "in_the_body"}'},
}  # fmt: skip
CHUNK = {"id": "c", "object": "chat.completion.chunk", "model": "gpt-x"}
TOOL_CALL = {"index": 0, "id": "call_1", "function": {"name": "f", "arguments": "{}"}}
CHUNKS = [
    {**CHUNK, "choices": [{"index": 0, "delta": {"reasoning_content": "Hm."}}]},
    {**CHUNK, "choices": [{"index": 0, "delta": {"content": "Well: é."}}]},
    {**CHUNK, "choices": [{"index": 0, "delta": {"tool_calls": [TOOL_CALL]}}]},
]
USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
END = {**CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
SERVER = UpstreamServer.of(
    name="up", dialect=DIALECTS["chat"], dialect_name="chat", base_url="https://up.test/v1",
    secret="sk-" + "0" * 40, profile=profile_with("vllm", {}), timeouts=Timeouts(), extra_body={},
    capabilities={"seed": True},
)  # fmt: skip
TARGET = Target(server=SERVER, model="gpt-x")
TARGET_RECORD = {
    "upstream": "up", "model": "gpt-x", "dialect": "chat", "profile": "vllm",
    "capabilities": {"seed": True},
}  # fmt: skip


class RecordedRequest(Request):
    """A request received at second 100 of a clock that the test sets (``at``).

    ``recorder``: by default one of its own, as a gateway of other tests may still run.
    """

    def __init__(self, headers=HEADERS, *, store_full: bool = True, recorder=None) -> None:
        self.recorder = recorder or Recorder()
        self.at = 100.0
        consumer = StreamingHttpConsumer()
        consumer.head = RequestHeaders(
            {"path": "/", "headers": headers, "client": ("192.0.2.7", 1)}
        )
        loop = SimpleNamespace(
            time=lambda: self.at, call_soon_threadsafe=lambda work, *args: work(*args)
        )
        consumer.deadlines = Deadlines(consumer.stop, loop)
        consumer.started, consumer.headers_sent, consumer.cancel_reason = 100.0, False, None
        consumer.delivered, consumer.response_bytes = True, 321
        super().__init__(consumer, consumer.head, _caller(store_full))
        consumer.request = self

    def start_attempt(self, at: float, target: Target = TARGET) -> None:
        self.at = at
        stream = DIALECTS["chat"].stream(ResponseContext(message_id="msg_1", model="claude-x"))
        self.attempt_started(
            AttemptRecord(target.server.name, target.model, at, status=200), target, stream
        )

    def feed(self, *events) -> None:
        self.attempts.fold.feed(*self.attempts.stream.feed(*events))


def _caller(store_full: bool) -> Caller:
    team = TeamEntry(
        name="t",
        ledger_id="team_1",
        store_full=store_full,
        models=ModelAllowList(),
        limits=NO_LIMITS,
    )
    return Caller(
        key_id=7, key_name="k", meter="t/k", team=team, user="ada", person_id="user_1", scopes=frozenset({"messages"}),
        models=ModelAllowList(), limits=NO_LIMITS, ip_allow=(), strict=False, events=frozenset(),
    )  # fmt: skip
