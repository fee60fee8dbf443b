"""Block types and roles of a conversation: what an administrator's rules leave of them."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

from translator.anthropic.content import BLOCKS_BY_ROLE, RESULT_PARTS
from translator.errors import BadRequest
from translator.notes import Note

Action = Literal["pass", "drop", "refuse"]
REASON: Final = "this upstream's policy"
KNOWN: Final = {
    "block": frozenset(RESULT_PARTS).union(*BLOCKS_BY_ROLE.values()),
    "role": frozenset(BLOCKS_BY_ROLE),
}
STAND_IN: Final = {"type": "text", "text": "-"}


def is_known(kind: str, name: str) -> bool:
    return name in KNOWN[kind]


class Sieve:
    """For one request and one upstream; what passes whole is handed back as the same object."""

    def __init__(self, of: Callable[[str, str], Action]) -> None:
        self._of = of
        self._verdicts: dict[tuple[str, str], Action] = {}
        self._gone: Counter[tuple[str, str]] = Counter()
        self._first: dict[tuple[str, str], str] = {}

    def messages(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Raises BadRequest that names what is refused."""
        kept = [
            self._message(message, f"messages.{number}")
            for number, message in enumerate(messages)
            if self._passes("role", message["role"], f"messages.{number}", ".role")
        ]
        if messages and not kept:
            raise BadRequest("messages", f"nothing is left of them by {REASON}")
        return messages if _same(kept, messages) else kept

    def notes(self) -> Iterator[Note]:
        """One for each name that was left out, where it stood first."""
        for (kind, name), times in self._gone.items():
            told = f"{kind} {name}" + (f", {times} times" if times > 1 else "")
            yield Note(self._first[kind, name], "dropped", f"{told}: {REASON}")

    def _message(self, message: dict[str, Any], path: str) -> dict[str, Any]:
        content = self._content(message["content"], f"{path}.content")
        return message if content is message["content"] else {**message, "content": content}

    def _content(self, content: Any, path: str) -> Any:
        if not isinstance(content, list):
            return content
        kept = [
            self._block(block, f"{path}.{number}")
            for number, block in enumerate(content)
            if self._passes("block", block["type"], f"{path}.{number}", ".type")
        ]
        if _same(kept, content):
            return content
        # No upstream takes a message of nothing, and without it the turns would not alternate.
        return kept or [{"type": "text", "text": f"[{content[0]['type']} left out]"}]

    def _block(self, block: dict[str, Any], path: str) -> dict[str, Any]:
        inner = block.get("content") if block["type"] == "tool_result" else None
        kept = self._content(inner, f"{path}.content")
        return block if kept is inner else {**block, "content": kept}

    def _passes(self, kind: str, name: str, path: str, field: str) -> bool:
        key = (kind, name)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._verdicts[key] = self._of(kind, name)
        if verdict == "refuse":
            raise BadRequest(path + field, f"`{name[:60]}` is not permitted by {REASON}")
        if verdict == "drop":
            self._gone[key] += 1
            self._first.setdefault(key, path)
        return verdict == "pass"


def _same(kept: list[Any], whole: list[Any]) -> bool:
    return len(kept) == len(whole) and all(a is b for a, b in zip(kept, whole, strict=True))


def judged(raw: Any, admits: Callable[[str, str], bool]) -> Any:
    """What the checks of a request look at: in the place of what rules let in stands a known thing.

    So each complaint names the place in the client's own body.
    """
    messages = raw.get("messages") if isinstance(raw, dict) else None
    if not isinstance(messages, list):
        return raw
    return {**raw, "messages": [_judged_message(message, admits) for message in messages]}


def _judged_message(message: Any, admits: Callable[[str, str], bool]) -> Any:
    if not isinstance(message, dict):
        return message
    content = _judged_content(message.get("content"), admits)
    role = message.get("role")
    if isinstance(role, str) and admits("role", role):
        return {**message, "role": "user", "content": content}
    return message if content is message.get("content") else {**message, "content": content}


def _judged_content(content: Any, admits: Callable[[str, str], bool]) -> Any:
    if not isinstance(content, list):
        return content
    return [_judged_block(block, admits) for block in content]


def _judged_block(block: Any, admits: Callable[[str, str], bool]) -> Any:
    kind = _type(block)
    if kind and admits("block", kind):
        return STAND_IN
    if kind == "tool_result" and isinstance(block.get("content"), list):
        return {**block, "content": _judged_content(block["content"], admits)}
    return block


def _type(block: Any) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    return kind if isinstance(kind, str) else ""
