"""A stored request and its answer as a conversation to be read: turns, blocks, calls with results.

Pure: dicts in, frozen values out. Everything may be hostile or broken, since clients and upstreams
wrote it: whatever does not have the expected shape is shown as JSON, and nothing here raises.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from .calls import readable
from .clips import Clip, Clipper, as_text, size_of_base64

TURNS_A_PAGE: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One thing to show. ``kind`` names its template; ``path`` is where the whole of it is."""

    kind: str
    path: str
    """In its request; in a page of several, behind the request's id and a colon."""
    text: Clip = field(default_factory=Clip)
    title: str = ""
    folded: bool = False
    cached: bool = False
    """The client set a cache breakpoint on this block."""
    failed: bool = False
    ident: str = ""
    parts: Sequence["Block"] = ()
    """What a tool result or a search result is made of."""
    result: "Block | None" = None
    """The tool result that answers this tool call."""

    @property
    def owner(self) -> str:
        """The request whose block it is; empty: that of the page."""
        owner, colon, _ = self.path.rpartition(":")
        return owner if colon else ""

    @property
    def place(self) -> str:
        return self.path.rpartition(":")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """All blocks of one message."""

    number: int | None
    """Position in ``messages``; None: the answer."""
    role: str
    blocks: Sequence[Block]
    is_new: bool = False
    """Not part of an earlier turn of the model: what this request added."""
    is_answered: bool = False
    """An earlier turn, to whose calls this request added the results."""

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
    """Number of the first turn shown."""
    count: int
    """Turns in the request, shown or not."""
    earlier: int | None
    """Where the page before this one starts; None: nothing is hidden before."""
    later: int | None
    new_before: int = 0
    """Of those before this page: how many this request added, as far as that is known."""


def read_conversation(
    request: Mapping[str, Any],
    answer: Mapping[str, Any] | None,
    *,
    start: int | None = None,
    new_from: int = 0,
) -> Conversation:
    """The page of turns from ``start`` and the answer.

    ``start`` None: from the answer to the request before on, which is what this request is about;
    where that is not known, the last page. ``new_from``: the first message that no earlier request
    of the session had; 0: not known.
    """
    clipper = Clipper()
    messages = _list(request.get("messages"))
    fresh = new_from or _first_new(messages)
    if new_from and _role(messages, fresh) == "assistant":
        fresh += 1  # the answer before, which the client repeats
    if start is None:
        start = max(_own_turn(messages, fresh) if new_from else 0, len(messages) - TURNS_A_PAGE)
    start = min(max(0, start), max(0, len(messages) - 1))
    stop = min(len(messages), start + TURNS_A_PAGE)
    answer_turn = read_answer(answer, clipper, {})  # first, so that the newest gets the page's room
    results = results_of(
        (f"messages.{number}", messages[number])
        for number in range(start, min(stop + 1, len(messages)))
    )
    turns = [
        turn if turn.is_new else replace(turn, is_answered=_is_answered(turn, fresh))
        for number in range(start, stop)
        if (turn := read_turn(messages[number], number, results, clipper, is_new=number >= fresh))
    ]
    return Conversation(
        system=_system(request.get("system"), clipper),
        tools=[
            _tool(tool, f"tools.{i}", clipper) for i, tool in enumerate(_list(request.get("tools")))
        ],
        turns=turns,
        answer=answer_turn,
        first=start,
        count=len(messages),
        earlier=max(0, start - TURNS_A_PAGE) if start else None,
        later=stop if stop < len(messages) else None,
        new_before=max(0, start - fresh) if new_from else 0,
    )


def _own_turn(messages: Sequence[Any], fresh: int) -> int:
    """Where to begin so that what is new stands below the answer that it follows."""
    at = max(0, min(fresh, len(messages) - 1))
    return at - 1 if _role(messages, at - 1) == "assistant" else at


def _role(messages: Sequence[Any], number: int) -> Any:
    return _dict(messages[number]).get("role") if 0 <= number < len(messages) else None


def _is_answered(turn: Turn, fresh: int) -> bool:
    results = [block.result.path for block in turn.blocks if block.result is not None]
    return any(int(path.split(".")[1]) >= fresh for path in results)  # messages.7.content.0


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _first_new(messages: Sequence[Any]) -> int:
    """Where the messages begin that no earlier answer preceded: after the last assistant turn."""
    for number in range(len(messages) - 1, -1, -1):
        if _dict(messages[number]).get("role") == "assistant":
            return number + 1
    return 0


def _blocks_of(content: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Path and block of each piece of a ``content``, whichever of its shapes it has."""
    if isinstance(content, str):
        yield path, {"type": "text", "text": content}
    elif isinstance(content, list):
        for i, block in enumerate(content):
            yield f"{path}.{i}", block
    elif content is not None:
        yield path, content


Results = dict[str, tuple[str, dict[str, Any]]]


def results_of(messages: Iterable[tuple[str, Any]]) -> Results:
    """Tool results by the id of the call, with their paths; only of calls that are among these.

    ``messages``: path and message, in order; an answer is a message too.
    """
    calls: set[Any] = set()
    found: Results = {}
    for where, message in messages:
        for path, block in _blocks_of(_dict(message).get("content"), f"{where}.content"):
            if str(_dict(block).get("type", "")).endswith("tool_use"):
                calls.add(as_text(_dict(block).get("id")))
            ident = _dict(block).get("tool_use_id")
            if isinstance(ident, str) and ident in calls:
                found.setdefault(ident, (path, block))
    return found


def read_turn(
    message: Any,
    number: int,
    results: Results,
    clipper: Clipper,
    *,
    is_new: bool,
    owner: str = "",
) -> Turn | None:
    """One message; None when all it held is shown beside the calls that it answers.

    ``owner``: the request that it is of and a colon, on a page of several.
    """
    path = f"{owner}messages.{number}"
    if not isinstance(message, dict):
        return Turn(number=number, role="?", blocks=[_json(message, path, clipper)], is_new=is_new)
    paired = {path for path, _ in results.values()}
    pieces = list(_blocks_of(message.get("content"), f"{path}.content"))
    blocks = [
        read_block(block, where, clipper, results) for where, block in pieces if where not in paired
    ]
    if pieces and not blocks:
        return None
    return Turn(number=number, role=as_text(message.get("role")), blocks=blocks, is_new=is_new)


def read_answer(
    answer: Mapping[str, Any] | None, clipper: Clipper, results: Results, *, owner: str = ""
) -> Turn | None:
    if answer is None:
        return None
    pieces = _blocks_of(answer.get("content"), f"{owner}answer.content")
    blocks = [read_block(block, path, clipper, results) for path, block in pieces]
    return Turn(number=None, role="assistant", blocks=blocks, is_new=True)


def _system(system: Any, clipper: Clipper) -> list[Block]:
    return [read_block(block, path, clipper, {}) for path, block in _blocks_of(system, "system")]


def _tool(tool: Any, path: str, clipper: Clipper) -> Block:
    name = as_text(_dict(tool).get("name") or _dict(tool).get("type") or "?")
    return Block(kind="tool", path=path, title=name, text=clipper.json(tool), folded=True)


def read_block(block: Any, path: str, clipper: Clipper, results: Results) -> Block:
    """One content block as something to show; an unknown type is shown as JSON."""
    kind = block.get("type") if isinstance(block, dict) else None
    reader = READERS.get(kind) if isinstance(kind, str) else None
    if reader is not None:
        return reader(block, path, clipper, results)
    if isinstance(kind, str) and kind.endswith("_tool_result"):
        return _tool_result(block, path, clipper, results)
    return _json(block, path, clipper)


def _json(block: Any, path: str, clipper: Clipper) -> Block:
    title = as_text(_dict(block).get("type") or "unexpected")
    return Block(kind="other", path=path, title=title, text=clipper.json(block), folded=True)


def _text(block: dict[str, Any], path: str, clipper: Clipper, results: Results) -> Block:
    text = as_text(block.get("text"))
    reminder = text.lstrip().startswith("<system-reminder>")
    return Block(
        kind="reminder" if reminder else "text",
        path=path,
        text=clipper.text(text),
        folded=reminder,
        cached=block.get("cache_control") is not None,
        title=f"{count} citations" if (count := len(_list(block.get("citations")))) else "",
    )


def _thinking(block: dict[str, Any], path: str, clipper: Clipper, results: Results) -> Block:
    text = as_text(block.get("thinking"))
    signed = "signed" if block.get("signature") else "not signed"
    return Block(kind="thinking", path=path, text=clipper.text(text), title=signed, folded=True)


def _redacted(block: dict[str, Any], path: str, clipper: Clipper, results: Results) -> Block:
    size = len(as_text(block.get("data")))
    return Block(kind="media", path=path, title=f"redacted thinking, {size:,} characters")


def _tool_use(block: dict[str, Any], path: str, clipper: Clipper, results: Results) -> Block:
    ident = as_text(block.get("id"))
    answered = results.get(ident)
    given = block.get("input")
    name = as_text(block.get("name"))
    # A string is what the upstream's broken JSON was kept as; it is not JSON to be quoted.
    told = given if isinstance(given, str) else readable(name, given)
    return Block(
        kind="tool_use",
        path=path,
        title=name,
        ident=ident,
        text=clipper.json(given) if told is None else clipper.text(told),
        failed=isinstance(given, str),
        result=_tool_result(answered[1], answered[0], clipper, {}) if answered else None,
        cached=block.get("cache_control") is not None,
    )


def _tool_result(block: dict[str, Any], path: str, clipper: Clipper, results: Results) -> Block:
    content = block.get("content")
    is_error = block.get("is_error") is True or as_text(_dict(content).get("type")).endswith(
        "error"
    )
    # One level deep: results inside results are shown as JSON, so that nesting cannot go deep.
    parts = [
        read_block(piece, where, clipper, {})
        if _dict(piece).get("type") in FLAT
        else _json(piece, where, clipper)
        for where, piece in _blocks_of(content, f"{path}.content")
    ]
    return Block(
        kind="tool_result",
        path=path,
        ident=as_text(block.get("tool_use_id")),
        parts=parts,
        failed=is_error,
        cached=block.get("cache_control") is not None,
    )


def _media(block: dict[str, Any], path: str, clipper: Clipper, results: Results) -> Block:
    """An image or document as a placeholder: what it is and how big, never the thing itself."""
    source = _dict(block.get("source"))
    words = [as_text(block.get("type"))]
    if block.get("title"):
        words.append(f"“{as_text(block['title'])[:120]}”")
    words.append(as_text(source.get("media_type") or source.get("type") or "unknown type")[:120])
    pieces: list[Block] = []
    payload = source.get("data")
    match source.get("type"):
        case "base64" if isinstance(payload, str):
            words.append(f"{size_of_base64(payload):,} bytes")
        case "text" if isinstance(payload, str):
            pieces = [Block(kind="text", path=f"{path}.source.data", text=clipper.text(payload))]
        case "url":
            words.append(as_text(source.get("url"))[:300])
        case "file":
            words.append(as_text(source.get("file_id"))[:120])
        case "content":
            inner = _blocks_of(source.get("content"), f"{path}.source.content")
            pieces = [_json(piece, where, clipper) for where, piece in inner]
        case _:
            pieces = [_json(block, path, clipper)]
    return Block(kind="media", path=path, title=" · ".join(words), parts=pieces)


FLAT: Final = frozenset({"text", "image", "document", "thinking", "redacted_thinking"})

READERS: Final = {
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
