"""Convert a stored request and its answer to a conversation: turns, blocks, tool calls, results.

No I/O: the input is dicts, the output is frozen dataclasses. Clients and upstreams wrote the input,
so it may be malformed: a value of an unexpected shape is shown as JSON, and no function here raises
an error.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from .media import media_kind
from .tool_calls import format_tool_input
from .truncation import TruncatedText, Truncator, as_text, size_of_base64

TURNS_PER_PAGE: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One content block, possibly truncated. ``kind`` selects the template that shows it."""

    kind: str
    path: str
    """Path of the block in its request, such as ``messages.2.content.0``.

    On a page with several requests, the request id and a colon precede the path.
    """
    text: TruncatedText = field(default_factory=TruncatedText)
    title: str = ""
    cache_breakpoint: bool = False
    """Whether the client set ``cache_control`` on this block."""
    failed: bool = False
    call_id: str = ""
    media: str = ""
    """How the page offers the file of a media block: image, pdf, or "" for not at all."""
    parts: Sequence["Block"] = ()
    """The blocks inside a tool result or a document."""
    result: "Block | None" = None
    """If this block is a tool call: its tool result, or None."""

    @property
    def request_id(self) -> str:
        """The id of the request with this block; empty if the page shows only one request."""
        request_id, colon, _ = self.path.rpartition(":")
        return request_id if colon else ""

    @property
    def local_path(self) -> str:
        return self.path.rpartition(":")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message of the conversation with its content blocks."""

    number: int | None
    """Index of the message in ``messages``; None for the model's answer."""
    role: str
    blocks: Sequence[Block]
    is_new: bool = False
    """Whether no earlier request of the session has this turn."""
    has_new_results: bool = False
    """Whether this is an earlier turn with tool calls, and this request added their results."""

    @property
    def role_slug(self) -> str:
        return self.role if self.role in {"user", "assistant", "system"} else "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    system: Sequence[Block]
    tools: Sequence[Block]
    turns: Sequence[Turn]
    answer: Turn | None
    first: int
    """Number of the first turn on this page."""
    count: int
    """Number of turns in the request, on this page or not."""
    earlier: int | None
    """Number of the first turn on the previous page; None if this is the first page."""
    later: int | None
    """Number of the first turn on the next page; None if this is the last page."""
    new_before: int = 0
    """Number of turns before this page that this request added; 0 if that is unknown."""


def read_conversation(
    request: Mapping[str, Any],
    answer: Mapping[str, Any] | None,
    *,
    start: int | None = None,
    new_from: int = 0,
    render_markdown: bool = False,
) -> Conversation:
    """Return one page of the request's turns, beginning at turn ``start``, and the answer.

    ``new_from`` is the number of the first message that no earlier request of the session has, or
    0 if that is unknown. If ``start`` is None, the page begins at the previous answer, so that the
    new turns follow it; if ``new_from`` is 0, the function returns the last page.
    """
    truncator = Truncator(render_markdown=render_markdown)
    messages = _list(request.get("messages"))
    roles = [_dict(message).get("role") for message in messages]
    first_new = new_from
    if not new_from:  # the message after the last answer
        answered = [number for number, role in enumerate(roles, 1) if role == "assistant"]
        first_new = max(answered, default=0)
    elif roles[new_from : new_from + 1] == ["assistant"]:
        first_new += 1  # this message repeats the previous answer, so it is not new
    if start is None:
        start = len(messages) - TURNS_PER_PAGE
        if new_from:  # the answer before the first new turn, or that turn itself
            at = max(0, min(first_new, len(messages) - 1))
            start = max(start, at - 1 if at and roles[at - 1] == "assistant" else at)
    start = min(max(0, start), max(0, len(messages) - 1))
    stop = min(len(messages), start + TURNS_PER_PAGE)
    # The answer is read before the turns, because it must fit on the page.
    answer_turn = read_answer(answer, truncator, {})
    results = results_by_call(
        (f"messages.{number}", messages[number])
        for number in range(start, min(stop + 1, len(messages)))
    )
    turns = []
    for number in range(start, stop):
        is_new = number >= first_new
        turn = read_turn(messages[number], number, results, truncator, is_new=is_new)
        if turn is not None:
            # The path of a result is, for example, messages.7.content.0.
            paths = [block.result.path for block in turn.blocks if block.result is not None]
            has_new = not is_new and any(int(path.split(".")[1]) >= first_new for path in paths)
            turns.append(replace(turn, has_new_results=has_new))
    return Conversation(
        system=[
            read_block(block, path, truncator, {})
            for path, block in _blocks_of(request.get("system"), "system")
        ],
        tools=[
            Block(
                kind="tool",
                path=f"tools.{number}",
                title=as_text(_dict(tool).get("name") or _dict(tool).get("type") or "?"),
                text=truncator.truncate_json(tool),
            )
            for number, tool in enumerate(_list(request.get("tools")))
        ],
        turns=turns,
        answer=answer_turn,
        first=start,
        count=len(messages),
        earlier=max(0, start - TURNS_PER_PAGE) if start else None,
        later=stop if stop < len(messages) else None,
        new_before=max(0, start - first_new) if new_from else 0,
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _blocks_of(content: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, block) for each block of ``content``: a string, a list or a single block."""
    if isinstance(content, str):
        yield path, {"type": "text", "text": content}
    elif isinstance(content, list):
        for i, block in enumerate(content):
            yield f"{path}.{i}", block
    elif content is not None:
        yield path, content


Results = dict[str, tuple[str, dict[str, Any]]]


def results_by_call(messages: Iterable[tuple[str, Any]]) -> Results:
    """Return the (path, block) of each tool result, by the id of its tool call.

    ``messages`` are (path, message) in order; an answer counts as a message. Results whose tool
    call is not in ``messages`` are left out.
    """
    calls: set[Any] = set()
    found: Results = {}
    for message_path, message in messages:
        for path, block in _blocks_of(_dict(message).get("content"), f"{message_path}.content"):
            if str(_dict(block).get("type", "")).endswith("tool_use"):
                calls.add(as_text(_dict(block).get("id")))
            call_id = _dict(block).get("tool_use_id")
            if isinstance(call_id, str) and call_id in calls:
                found.setdefault(call_id, (path, block))
    return found


def read_turn(
    message: Any,
    number: int,
    results: Results,
    truncator: Truncator,
    *,
    is_new: bool,
    owner: str = "",
) -> Turn | None:
    """Return one message as a turn.

    None is returned for a message with only tool results, because these are shown with their calls.
    On a page with several requests, ``owner`` is the id of the message's request and a colon.
    """
    path = f"{owner}messages.{number}"
    if not isinstance(message, dict):
        return Turn(
            number=number, role="?", blocks=[_json(message, path, truncator)], is_new=is_new
        )
    paired = {path for path, _ in results.values()}
    content = list(_blocks_of(message.get("content"), f"{path}.content"))
    blocks = [
        read_block(block, block_path, truncator, results)
        for block_path, block in content
        if block_path not in paired
    ]
    if content and not blocks:
        return None
    return Turn(number=number, role=as_text(message.get("role")), blocks=blocks, is_new=is_new)


def read_answer(
    answer: Mapping[str, Any] | None, truncator: Truncator, results: Results, *, owner: str = ""
) -> Turn | None:
    if answer is None:
        return None
    content = _blocks_of(answer.get("content"), f"{owner}answer.content")
    blocks = [read_block(block, path, truncator, results) for path, block in content]
    return Turn(number=None, role="assistant", blocks=blocks, is_new=True)


def read_block(block: Any, path: str, truncator: Truncator, results: Results) -> Block:
    """Return one content block as a Block; a block of an unknown type is shown as JSON."""
    kind = block.get("type") if isinstance(block, dict) else None
    reader = BLOCK_READERS.get(kind) if isinstance(kind, str) else None
    if reader is not None:
        return reader(block, path, truncator, results)
    if isinstance(kind, str) and kind.endswith("_tool_result"):
        return _tool_result(block, path, truncator, results)
    return _json(block, path, truncator)


def _json(block: Any, path: str, truncator: Truncator) -> Block:
    title = as_text(_dict(block).get("type") or "unexpected")
    return Block(kind="other", path=path, title=title, text=truncator.truncate_json(block))


def _text(block: dict[str, Any], path: str, truncator: Truncator, results: Results) -> Block:
    text = as_text(block.get("text"))
    reminder = text.lstrip().startswith("<system-reminder>")
    return Block(
        kind="reminder" if reminder else "text",
        path=path,
        text=truncator.truncate_text(text) if reminder else truncator.truncate_markdown(text),
        cache_breakpoint=block.get("cache_control") is not None,
        title=f"{count} citations" if (count := len(_list(block.get("citations")))) else "",
    )


def _thinking(block: dict[str, Any], path: str, truncator: Truncator, results: Results) -> Block:
    text = as_text(block.get("thinking"))
    signed = "signed" if block.get("signature") else "not signed"
    return Block(kind="thinking", path=path, text=truncator.truncate_text(text), title=signed)


def _redacted(block: dict[str, Any], path: str, truncator: Truncator, results: Results) -> Block:
    size = len(as_text(block.get("data")))
    return Block(kind="media", path=path, title=f"redacted thinking, {size:,} characters")


def _tool_use(block: dict[str, Any], path: str, truncator: Truncator, results: Results) -> Block:
    call_id = as_text(block.get("id"))
    result = results.get(call_id)
    tool_input = block.get("input")
    name = as_text(block.get("name"))
    # If the upstream sent malformed JSON, the input is stored as a string; show it unquoted.
    text = tool_input if isinstance(tool_input, str) else format_tool_input(name, tool_input)
    return Block(
        kind="tool_use",
        path=path,
        title=name,
        call_id=call_id,
        text=truncator.truncate_json(tool_input) if text is None else truncator.truncate_text(text),
        failed=isinstance(tool_input, str),
        result=_tool_result(result[1], result[0], truncator, {}) if result else None,
        cache_breakpoint=block.get("cache_control") is not None,
    )


def _tool_result(block: dict[str, Any], path: str, truncator: Truncator, results: Results) -> Block:
    content = block.get("content")
    is_error = block.get("is_error") is True or as_text(_dict(content).get("type")).endswith(
        "error"
    )
    # Tool results inside tool results are shown as JSON, so blocks nest only one level deep.
    parts = [
        read_block(part, part_path, truncator, {})
        if _dict(part).get("type") in SIMPLE_BLOCKS
        else _json(part, part_path, truncator)
        for part_path, part in _blocks_of(content, f"{path}.content")
    ]
    return Block(
        kind="tool_result",
        path=path,
        call_id=as_text(block.get("tool_use_id")),
        parts=parts,
        failed=is_error,
        cache_breakpoint=block.get("cache_control") is not None,
    )


def _media(block: dict[str, Any], path: str, truncator: Truncator, results: Results) -> Block:
    """Return an image or document with its type and size; a URL of its own has its data."""
    source = _dict(block.get("source"))
    labels = [as_text(block.get("type"))]
    if block.get("title"):
        labels.append(f"“{as_text(block['title'])[:120]}”")
    labels.append(as_text(source.get("media_type") or source.get("type") or "unknown type")[:120])
    parts: list[Block] = []
    payload = source.get("data")
    match source.get("type"):
        case "base64" if isinstance(payload, str):
            labels.append(f"{size_of_base64(payload):,} bytes")
        case "text" if isinstance(payload, str):
            parts = [
                Block(
                    kind="text", path=f"{path}.source.data", text=truncator.truncate_text(payload)
                )
            ]
        case "url":
            labels.append(as_text(source.get("url"))[:300])
        case "file":
            labels.append(as_text(source.get("file_id"))[:120])
        case "content":
            inner = _blocks_of(source.get("content"), f"{path}.source.content")
            parts = [_json(part, part_path, truncator) for part_path, part in inner]
        case _:
            parts = [_json(block, path, truncator)]
    return Block(
        kind="media", path=path, title=" · ".join(labels), parts=parts, media=media_kind(source)
    )


SIMPLE_BLOCKS: Final = frozenset({"text", "image", "document", "thinking", "redacted_thinking"})

BLOCK_READERS: Final = {
    "text": _text,
    "thinking": _thinking,
    "redacted_thinking": _redacted,
    "tool_use": _tool_use,
    "server_tool_use": _tool_use,
    "mcp_tool_use": _tool_use,
    "tool_result": _tool_result,
    "image": _media,
    "document": _media,
}
