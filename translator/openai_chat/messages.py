"""The conversation: Anthropic's turns -> Chat messages, in the order that Chat demands.

Tool messages stand directly after the assistant message whose calls they answer, one for each;
pictures from their results follow in one user message, before the user's own words.
Source: mapping.md 1.4.
"""

from typing import Any, Literal, NoReturn

from translator.draft import SYSTEM, Draft
from translator.errors import BadRequest
from translator.names import upstream_call_id
from translator.render import system_blocks, tool_error_text
from translator.tool_changes import CHANGES

from .assistant import assistant_message, read_turn
from .parts import PARTS, collapsed, is_text
from .types import ChatMessage, ContentPart

IMAGE_PLACEHOLDER = "[image or file: in the next user message]"
NO_RESULT = "[no result recorded]"


class Between:
    """What stands between two assistant messages; results are sorted to its front."""

    def __init__(self) -> None:
        self.calls: list[str] = []  # ids of the assistant message before it
        self.results: dict[str, str] = {}
        self.media: list[ContentPart] = []  # out of tool results
        self.spoken: list[ChatMessage] = []  # of user and system, in order


def build_messages(draft: Draft) -> list[ChatMessage]:
    """All messages of the request, the system prompt first."""
    history: list[ChatMessage] = []
    origins = draft.origins
    between = Between()
    for number, message in enumerate(draft.request["messages"]):
        path = f"messages.{number}"
        match message["role"]:
            case "assistant":
                told = _settled(between, path, draft)
                history += told
                origins += [number - 1] * len(told)
                between = Between()
                told = _assistant(message, path, between, draft)
                history += told
                origins += [number] * len(told)
            case "system":
                _system(message, number, between, draft)
            case _:
                _user(message, path, between, draft)
    told = _settled(between, "messages", draft)
    history += told
    origins += [number] * len(told)
    if draft.profile.merge_users:
        history = _merged_users(history)
        draft.origins.clear()  # entries of several messages have no one place
    if history and history[-1]["role"] == "assistant" and not draft.profile.prefill:
        _refuse_prefill(draft)
    if draft.profile.cache_breakpoints and draft.request.get("cache_control"):
        _mark_last_user(history)
    messages = _system_prompt(draft) + history
    if not messages:
        raise BadRequest("messages", "text content blocks must be non-empty")
    if draft.origins:
        draft.origins[:0] = [SYSTEM] * (len(messages) - len(history))
    return messages


def system_role(draft: Draft) -> Literal["developer", "system"]:
    return "developer" if draft.profile.developer_role else "system"


def _system_prompt(draft: Draft) -> list[ChatMessage]:
    blocks, notes = system_blocks(draft.request)
    for note in notes:
        draft.note(note.path, note.fate, note.reason)
    parts: list[ContentPart] = []
    for block in blocks:
        parts += PARTS.of_block(block, "system", draft)
    parts += map(PARTS.text, draft.system_additions)
    return [{"role": system_role(draft), "content": collapsed(parts)}] if parts else []


def _assistant(
    message: dict[str, Any], path: str, between: Between, draft: Draft
) -> list[ChatMessage]:
    turn = read_turn(message["content"], path, draft)
    messages: list[ChatMessage] = []
    if turn.summaries:
        messages += filter(None, [_in_place(text, path, draft) for text in turn.summaries])
    if (built := assistant_message(turn, path, draft)) is not None:
        messages.append(built)
    between.calls = [call["id"] or "" for call in turn.calls]
    return messages


def _user(message: dict[str, Any], path: str, between: Between, draft: Draft) -> None:
    content = message["content"]
    if isinstance(content, str):
        if content and not content.isspace():
            between.spoken.append({"role": "user", "content": content})
        return
    parts: list[ContentPart] = []
    for number, block in enumerate(content):
        if block["type"] == "tool_result":
            _tool_result(block, f"{path}.content.{number}", between, draft)
        else:
            parts += PARTS.of_block(block, f"{path}.content.{number}", draft)
    if parts:
        between.spoken.append({"role": "user", "content": parts})


def _tool_result(block: dict[str, Any], path: str, between: Between, draft: Draft) -> None:
    content = block.get("content") or []
    if isinstance(content, str):
        text = "" if content.isspace() else content
    else:
        text = _told(content, path, between, draft)
    if block.get("is_error"):
        draft.note(f"{path}.is_error", "emulated", "told at the beginning of the output")
        text = tool_error_text(text)
    call_id = upstream_call_id(block["tool_use_id"])
    if call_id in between.results:
        draft.note(path, "repaired", "another result of the same call replaces the first one")
    between.results[call_id] = text


def _told(blocks: list[dict[str, Any]], path: str, between: Between, draft: Draft) -> str:
    """What the blocks of a tool result say; pictures go to ``between``, where they may stand."""
    texts: list[str] = []
    for number, block in enumerate(blocks):
        if block["type"] == "text":
            if block["text"] and not block["text"].isspace():
                texts.append(block["text"])
            continue
        for part in PARTS.of_block(block, f"{path}.content.{number}", draft):
            part.pop("prompt_cache_breakpoint", None)
            texts.append(part["text"] if is_text(part) else IMAGE_PLACEHOLDER)
            if not is_text(part):
                between.media.append(part)
                draft.note(path, "emulated", "media of a tool result moved to a user message")
    return "\n".join(texts)


def _system(message: dict[str, Any], number: int, between: Between, draft: Draft) -> None:
    """A system message in mid conversation: in place, or hoisted where templates forbid that."""
    path = f"messages.{number}"
    if message.get("clear_at") == "next_user_message" and number < draft.last_user_message:
        draft.note(path, "emulated", "cleared: a user message follows")
        return
    effort = (message.get("output_config") or {}).get("effort")
    if effort and number < draft.effort_until:
        draft.effort = (effort, f"{path}.output_config.effort")
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    spoken = [block for block in blocks if block.get("type") not in CHANGES]
    parts = [part for block in spoken for part in PARTS.of_block(block, path, draft)]
    text = "\n\n".join(part["text"] for part in parts if is_text(part))
    placed = _in_place(text, path, draft) if text else None
    if placed is not None:
        between.spoken.append(placed)


def _in_place(text: str, path: str, draft: Draft) -> ChatMessage | None:
    """System text as a message where it stands; None when it had to join the first one."""
    if draft.profile.system_in_place:
        return {"role": system_role(draft), "content": text}
    draft.system_additions.append(text)
    draft.note(path, "emulated", "a system message in mid conversation joins the first one")
    return None


def _settled(between: Between, path: str, draft: Draft) -> list[ChatMessage]:
    """Results first and complete, then their pictures, then what was said."""
    messages: list[ChatMessage] = []
    for id_ in between.calls:
        if id_ not in between.results:
            draft.note(path, "repaired", "a tool call without its result")
        text = between.results.pop(id_, NO_RESULT)
        messages.append({"role": "tool", "tool_call_id": id_, "content": text})
    if between.results or between.media:
        _lead(between, path, draft)
    for message in between.spoken:
        if isinstance(content := message["content"], list):
            messages.append({**message, "content": collapsed(content)})
        else:
            messages.append(message)
    return messages


def _lead(between: Between, path: str, draft: Draft) -> None:
    """Put what the results could not hold before the user's own words."""
    first = [*between.media]
    for text in between.results.values():
        draft.note(path, "repaired", "a tool result without its call is told as user text")
        first.append(PARTS.text(f"[tool result] {text}"))
    spoken = between.spoken
    if spoken and spoken[0]["role"] == "user":
        spoken[0] = {"role": "user", "content": [*first, *_parts(spoken[0])]}
    else:
        spoken.insert(0, {"role": "user", "content": first})


def _merged_users(messages: list[ChatMessage]) -> list[ChatMessage]:
    """One user message for neighbours: some templates demand that the roles alternate."""
    merged: list[ChatMessage] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last is None or last["role"] != "user" or message["role"] != "user":
            merged.append(message)
            continue
        last["content"] = collapsed([*_parts(last), *_parts(message)])
    return merged


def _parts(message: ChatMessage) -> list[ContentPart]:
    content = message.get("content")
    return content if isinstance(content, list) else [PARTS.text(content or "")]


def _refuse_prefill(draft: Draft) -> NoReturn:
    number = len(draft.request["messages"]) - 1
    raise BadRequest(f"messages.{number}", "this model does not support assistant message prefill")


def _mark_last_user(history: list[ChatMessage]) -> None:
    """The automatic cache breakpoint: the last part that the user said."""
    last = next((m for m in reversed(history) if m["role"] == "user"), None)
    if last is not None:
        parts = _parts(last)
        PARTS.mark(parts[-1])
        last["content"] = parts
