"""What the gateway writes into the spool: one open record, chunks while it runs, one close record.

Plain data (msgspec Structs, stored as MessagePack) without Django: the hot path makes them, the
drainer turns them into database rows. Times are Unix seconds (float, UTC); durations are
milliseconds; money is nano-dollars. What is as its default is not written, which saves a tenth of
the time and 0.3 KB of an exchange's two: so a default may not change while old spools are about.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from .spool_file import Row
from .spool_talk import CHUNK, CLOSE, OPEN


class OpenRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="open"):
    """A request was accepted. Durable before the upstream is called (D7)."""

    id: str  # "req_" + ULID
    created: float
    worker: str
    team: str
    key_id: int | None
    key_name: str
    user: str = ""
    session_id: str = ""
    agent_id: str = ""
    parent_agent_id: str = ""
    ip: str | None = None
    user_agent: str = ""
    client_name: str = ""
    client_version: str = ""
    api_version: str = ""
    betas: list[str] = []
    tags: dict[str, str] = {}
    traceparent: str = ""
    endpoint: str = "messages"
    stream: bool = False
    model_requested: str = ""
    model_upstream: str = ""
    upstream: str = ""
    dialect: str = ""
    request_bytes: int = 0
    message_count: int = 0  # read from the body where there is one
    has_images: bool = False  # likewise
    target: dict[str, Any] = {}  # {upstream, model, dialect, profile, capabilities}: for replay
    body: bytes | None = None  # the client's bytes as received; None: the team keeps metadata only
    # Under a hard budget, the usage to charge if no close record comes: as CloseRecord.usage.
    worst_case: dict[str, Any] = {}
    faulty: bool = False  # the body was refused for what it says: nobody may rely on its shape


class Chunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="chunk"):
    """Raw upstream bytes of the last second: the checkpoint of a running answer."""

    id: str
    reads: list[tuple[float, bytes]]  # (milliseconds since the dial, bytes as read)
    attempt: int = 0  # a failover begins a new answer: the reads of the highest attempt count
    target: dict[str, Any] = {}  # as in OpenRecord, where the attempt went elsewhere
    status: int = 200  # of the upstream's answer; any other one: the reads are an error's body


class CloseRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="close"):
    """What became of the request. Every way out writes exactly one."""

    id: str
    finished: float
    outcome: str  # proxy.models.Outcome
    status: int
    stop_reason: str = ""
    error_type: str = ""
    error_message: str = ""
    error_source: str = ""
    detail: str = ""
    queue_ms: float | None = None
    ttft_ms: float | None = None
    total_ms: float | None = None
    upstream_ms: float | None = None
    overhead_ms: float | None = None
    model_upstream: str = ""
    upstream: str = ""
    dialect: str = ""
    upstream_status: int | None = None
    upstream_request_id: str = ""
    attempts: list[dict[str, Any]] = []
    notes: list[dict[str, str]] = []
    unknown_events: dict[str, int] = {}
    # The fields of translator Usage, as dataclasses.asdict gives them; where classes differ in
    # their source, also "input_source", "output_source", "cache_read_source", …
    usage: dict[str, Any] = {}
    cost_nanousd: int | None = None  # with ``price``: settled by the gateway
    price: dict[str, Any] | None = None  # None: the drainer looks the price up
    tool_calls: int = 0  # read from the answer where there is one
    tool_names: list[str] = []  # likewise
    has_thinking: bool = False  # likewise
    response_bytes: int = 0
    delivered: bool = True
    upstream_request_sha256: str = ""
    target: dict[str, Any] = {}  # as in OpenRecord: who answered in the end
    attempt: int = 0  # as in Chunk: the last one, and the one that the reads are of
    reads: list[tuple[float, bytes]] = []  # as in Chunk: what came after the last one
    answer: dict[str, Any] | None = None  # the folded message; None: nothing came, or metadata only


Record = OpenRecord | Chunk | CloseRecord
KIND: Final = {OpenRecord: OPEN, Chunk: CHUNK, CloseRecord: CLOSE}

_encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    """The record's bytes; never raises, for the spool's one thread writes everybody's records.

    What MessagePack cannot carry is written as text: integers beyond 64 bits (a model may say one
    in a tool's arguments) and lone surrogates (a header of an upstream may hold any byte).
    """
    try:
        return _encode(record)
    except (OverflowError, UnicodeEncodeError):
        return _encode(carried(msgspec.to_builtins(record, builtin_types=(bytes,))))


def rows_of(records: Iterable[Record]) -> list[Row]:
    """For a spool that nobody else writes to: ``spool_file.append`` gives them their numbers."""
    now = time.time()
    return [(None, record.id, KIND[type(record)], now, encode(record)) for record in records]


def carried(value: Any) -> Any:
    """The same value with nothing in it that MessagePack refuses."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case int() if not -(2**63) <= value < 2**64:
            return str(value)
        case dict():
            return {carried(name): carried(each) for name, each in value.items()}
        case list() | tuple():
            return [carried(each) for each in value]
    return value


def decode(body: bytes) -> Record:
    """Raises ``msgspec.DecodeError`` when the bytes are not a record."""
    return _decoder.decode(body)
