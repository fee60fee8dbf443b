"""Convert the conversation of a request, in the order that both OpenAI APIs require.

An assistant turn is followed by the results of its tool calls, one for each call, then by the other
user content in order. A subclass for each API defines the JSON of the entries. Source:
docs/mapping.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import takewhile
from typing import Any, ClassVar, Final

from translator.anthropic.request_validation import TOOL_CHANGES
from translator.errors import BadRequest

from .builder import RequestBuilder
from .content_parts import Block, Part, PartBuilder
from .id_mapping import upstream_call_id
from .text_fallbacks import REPEATED_RESULT, document_text, server_result_text, tool_error_text

Entry = dict[str, Any]
"""One entry of the upstream's history: a message, or an input item."""
Output = str | list[Part]

NO_RESULT: Final = "[no result recorded]"
MEDIA_PLACEHOLDER: Final = "[image or file: in the next user message]"

ASSISTANT_BLOCKS: Final[Mapping[str, str]] = {
    "advisor_tool_result": "add_rendered_text",
    "bash_code_execution_tool_result": "add_rendered_text",
    "code_execution_tool_result": "add_rendered_text",
    "compaction": "add_compaction",
    "document": "add_document",
    "fallback": "omit",
    "mcp_tool_listing": "omit",
    "mcp_tool_result": "add_mcp_result",
    "mcp_tool_use": "add_mcp_call",
    "redacted_thinking": "add_thinking",
    "server_tool_use": "omit",
    "text": "add_text",
    "text_editor_code_execution_tool_result": "add_rendered_text",
    "thinking": "add_thinking",
    "tool_search_tool_result": "omit",
    "tool_use": "add_tool_use",
    "web_fetch_tool_result": "add_rendered_text",
    "web_search_tool_result": "add_rendered_text",
}
"""Type of a block in an assistant turn -> the method of ``AssistantTurn`` that adds it."""


class AssistantTurn(ABC):
    """The upstream's form of one assistant turn; each ``add_`` method adds one block."""

    RENDERED: ClassVar[str]
    """The note for a block that is sent as text."""
    OMITTED: ClassVar[str]

    def __init__(self, content: str | list[Block], path: str, builder: RequestBuilder) -> None:
        self.builder = builder
        self.calls: list[str] = []  # ids of the tool calls, each of which needs a result
        self.place = path  # of what is read, for the entries made from it
        if isinstance(content, str):
            self.write(content)
            content = []
        for number, block in enumerate(content):
            block_path, kind = f"{path}.content.{number}", block["type"]
            if kind not in ASSISTANT_BLOCKS:
                raise BadRequest(
                    f"{block_path}.type", f"{kind!r} is not supported by this upstream"
                )
            self.place = f"{block_path}.{kind}"
            getattr(self, ASSISTANT_BLOCKS[kind])(block, block_path)

    @abstractmethod
    def write(self, text: str) -> None:
        """Add a text, unless it is blank."""

    @abstractmethod
    def add_thinking(self, block: Block, path: str) -> None: ...
    @abstractmethod
    def add_tool_use(self, block: Block, path: str) -> None: ...
    @abstractmethod
    def add_compaction(self, block: Block, path: str) -> None: ...

    def drop_orphan_reasoning(self, path: str) -> None:  # noqa: B027 - only one API rejects it
        """Drop reasoning that nothing follows, for an API that rejects it."""

    def start_call(self, block: Block) -> str:
        """Return the upstream's id of a call, which needs a result from now on."""
        call_id = upstream_call_id(block["id"], self.builder.target)
        self.calls.append(call_id)
        if self.builder.target.recorded_calls:
            self.builder.note_recorded_call(block["id"])
        return call_id

    def add_text(self, block: Block, path: str) -> None:
        self.write(block["text"])

    def add_rendered_text(self, block: Block, path: str) -> None:
        text = server_result_text(block)
        if not text:
            self.omit(block, path)
            return
        self.drop_orphan_reasoning(path)
        self.write(text)
        self.builder.add_note(path, "emulated", self.RENDERED.format(block["type"]))

    def add_document(self, block: Block, path: str) -> None:
        self.write(document_text(block))
        self.builder.add_note(path, "emulated", "a document in an assistant turn is sent as text")

    def omit(self, block: Block, path: str) -> None:
        self.drop_orphan_reasoning(path)
        self.builder.add_note(path, "ignored", self.OMITTED.format(block["type"]))

    add_mcp_call = omit
    add_mcp_result = add_rendered_text


class Conversation(ABC):
    """The upstream's history, in ``entries``, from the messages of a request."""

    PARTS: ClassVar[PartBuilder]
    MESSAGE: ClassVar[Entry] = {}
    """Fields of each message, beside ``role`` and ``content``."""

    def __init__(self, builder: RequestBuilder, *, media_in_output: bool) -> None:
        """Read all messages; ``media_in_output``: a tool's output may contain images and files."""
        self.builder = builder
        self.entries: list[Entry] = []
        self._media_in_output = media_in_output
        self._start_user_turn([])
        for number, message in enumerate(builder.request["messages"]):
            path = f"messages.{number}"
            match message["role"]:
                case "assistant":
                    self._end_user_turn(path)
                    self._start_user_turn(self.add_assistant_turn(message["content"], path))
                case "system":
                    self._read_system_message(message, number)
                case _:
                    self._read_user_message(message, path)
        self._end_user_turn("messages")

    @abstractmethod
    def add_assistant_turn(self, content: str | list[Block], path: str) -> list[str]:
        """Add the entries of an assistant turn; return the ids of its calls."""

    @abstractmethod
    def add_system_text(self, parts: list[Part], path: str) -> None:
        """Add a system message of mid conversation to the user's turn."""

    @abstractmethod
    def result_entry(self, call_id: str, output: Output) -> Entry:
        """Return the entry with the result of a call."""

    def set_effort(self, effort: Any, number: int, path: str) -> None:
        """Apply the effort of system message ``number``."""
        if number < self.builder.effort_end:
            self.builder.effort = (effort, f"{path}.output_config.effort")

    def parts_of(self, content: Any) -> list[Part]:
        return content if isinstance(content, list) else [self.PARTS.text_part(content or "")]

    def orphan_parts(self, output: Output) -> list[Part]:
        """Return the user content for a tool result without its call."""
        return [self.PARTS.text_part("[tool result]"), *self.parts_of(output)]

    def message(self, role: str, content: str | list[Part]) -> Entry:
        return {**self.MESSAGE, "role": role, "content": content}

    def add_message(self, role: str, content: str | list[Part], path: str) -> None:
        """Add a message to the content between two assistant turns."""
        message = self.message(role, content)
        self.builder.place(message, path)
        self.user_entries.append(message)

    def mark_last_user_message(self) -> None:
        """Set the request's automatic cache breakpoint on the last part of the last user message.

        A breakpoint that the client set on this part has precedence, since it may last longer.
        """
        automatic = self.builder.request.get("cache_control")
        if not automatic or not self.builder.profile.cache_breakpoints:
            return
        last = next(
            (entry for entry in reversed(self.entries) if entry.get("role") == "user"), None
        )
        if last is not None:
            last["content"] = parts = self.parts_of(last["content"])
            if "prompt_cache_breakpoint" not in parts[-1]:
                self.PARTS.set_cache_breakpoint(parts[-1], automatic)

    def _start_user_turn(self, calls: list[str]) -> None:
        """Start the content between two assistant turns; ``calls`` are those of the first one."""
        self._calls = calls
        self._results: dict[str, list[Output]] = {}  # id of a call -> its results, usually one
        self._result_paths: dict[str, str] = {}
        self._media: list[Part] = []  # of tool results whose output may contain only text
        self.user_entries: list[Entry] = []  # messages of the user and the system, in order

    def _read_user_message(self, message: dict[str, Any], path: str) -> None:
        content = message["content"]
        if isinstance(content, str):
            parts = self.PARTS.convert_content(content, path, self.builder)
        else:
            parts = []
            for number, block in enumerate(content):
                block_path = f"{path}.content.{number}"
                if block["type"] == "tool_result":
                    self._read_tool_result(block, block_path)
                else:
                    parts += self.PARTS.convert_block(block, block_path, self.builder)
        if parts:
            self.add_message("user", parts, path)

    def _read_tool_result(self, block: Block, path: str) -> None:
        builder = self.builder
        content = block.get("content") or ()
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        texts: list[str] = []
        parts: list[Part] = []
        has_media = False
        for number, inner in enumerate(content):
            if inner["type"] == "text" and not self._media_in_output:  # nearly every block
                if inner["text"] and not inner["text"].isspace():
                    texts.append(inner["text"])
                continue
            for part in self.PARTS.convert_block(inner, f"{path}.content.{number}", builder):
                part.pop("prompt_cache_breakpoint", None)
                if "text" in part:
                    texts.append(part["text"])
                elif self._media_in_output:
                    has_media = True
                else:
                    texts.append(MEDIA_PLACEHOLDER)
                    self._media.append(part)
                    reason = "media of a tool result moved to a user message"
                    builder.add_note(path, "emulated", reason)
                parts.append(part)
        output: Output = "\n".join(texts)
        if block.get("is_error"):
            # OpenAI's APIs have no error flag, and the model must not read the error as a normal
            # result.
            builder.add_note(f"{path}.is_error", "emulated", "the output starts with 'Error'")
            parts = [self.PARTS.text_part(tool_error_text("")), *parts]
            output = tool_error_text("\n".join(texts))
        if has_media:
            output = parts
        call_id = upstream_call_id(block["tool_use_id"], builder.target)
        outputs = self._results.setdefault(call_id, [])
        if outputs:
            builder.add_note(path, *REPEATED_RESULT)
        if outputs != [output]:
            outputs.append(output)
        self._result_paths[call_id] = f"{path}.tool_result"

    def _joined(self, outputs: list[Output]) -> Output:
        """Return the results of one call as one: a text, unless one of them has media."""
        if len(outputs) == 1:  # nearly always
            return outputs[0]
        texts = [*takewhile(lambda output: isinstance(output, str), outputs)]
        text, rest = "\n".join(map(str, texts)), outputs[len(texts) :]
        if not rest:
            return text
        parts = self.parts_of(text) if texts else []
        return [*parts, *(part for output in rest for part in self.parts_of(output))]

    def _read_system_message(self, message: dict[str, Any], number: int) -> None:
        path = f"messages.{number}"
        if message.get("clear_at") == "next_user_message" and (
            number < self.builder.last_user_message
        ):
            self.builder.add_note(path, "emulated", "cleared: a user message follows")
            return
        if effort := (message.get("output_config") or {}).get("effort"):
            self.set_effort(effort, number, path)
        content = message["content"]
        if not isinstance(content, str):
            content = [block for block in content if block.get("type") not in TOOL_CHANGES]
        if parts := self.PARTS.convert_content(content, path, self.builder):
            self.add_system_text(parts, path)

    def _end_user_turn(self, path: str) -> None:
        """Add a turn's entries: tool results (one per call), images and files, other content."""
        for call_id in self._calls:
            if call_id not in self._results:
                self.builder.add_note(path, "repaired", "a tool call without its result")
            output = self._joined(self._results.pop(call_id, [NO_RESULT]))
            entry = self.result_entry(call_id, output)
            self.builder.place(entry, self._result_paths.get(call_id, ""))
            self.entries.append(entry)
        parts = self._media
        for orphan in self._results.values():
            self.builder.add_note(
                path, "repaired", "a tool result without its call is sent as user text"
            )
            parts += self.orphan_parts(self._joined(orphan))
        entries = self.user_entries
        if parts and entries and entries[0].get("role") == "user":
            entries[0]["content"] = parts + entries[0]["content"]
        elif parts:
            entries.insert(0, self.message("user", parts))
        self.entries += entries
