"""Convert the conversation to ``input`` items, in the order that the Responses API requires."""

from typing import ClassVar, Final

from translator.request.builder import RequestBuilder
from translator.request.content_parts import Block, Part, PartBuilder
from translator.request.conversation import AssistantTurn, Conversation, Entry, Output
from translator.request.id_mapping import carried_fields, upstream_name
from translator.request.text_fallbacks import server_result_text

from .reasoning import RECORDED_REASONING, restore_compaction, restore_reasoning

MCP_ID: Final = "mcptoolu_"
"""The prefix of Anthropic's ids of MCP calls."""
MAX_ITEM_ID: Final = 64
CALLS: Final = frozenset({"function_call", "mcp_call"})
CONTINUE: Final = (
    "Your last message is unfinished. Continue it exactly where it ends, and repeat nothing of it."
)
MAX_BREAKPOINTS: Final = 4  # cache breakpoints in one request, a limit of OpenAI


class InputPartBuilder(PartBuilder):
    def text_part(self, text: str) -> Part:
        return {"type": "input_text", "text": text}

    def image_part(self, url: str) -> Part:
        return {"type": "input_image", "detail": "auto", "image_url": url}

    def file_part(self, name: str, data_url: str) -> Part:
        return {"type": "input_file", "filename": name, "file_data": data_url}

    def file_url_part(self, url: str) -> Part:
        return {"type": "input_file", "file_url": url}

    def set_cache_breakpoint(self, part: Part, cache_control: Block) -> None:
        """Set a cache breakpoint; without this capability the server chooses the cached prefix."""
        part["prompt_cache_breakpoint"] = {"mode": "explicit"}
        if cache_control.get("ttl") == "1h":
            part["prompt_cache_breakpoint"]["ttl"] = "12h"


PART_BUILDER: Final = InputPartBuilder()


class ResponsesTurn(AssistantTurn):
    """The input items of one assistant turn, in order."""

    RENDERED = "a {} is sent as text"
    OMITTED = "a {} of an earlier response is not sent again"

    def __init__(self, content: str | list[Block], path: str, builder: RequestBuilder) -> None:
        self.items: list[Entry] = []
        self._mcp_calls: dict[str, Entry] = {}  # by the id of the call
        self._recorded_items = 0  # number of reasoning items from the record
        super().__init__(content, path, builder)
        if self.items and self.items[-1]["type"] == "reasoning":
            self.drop_orphan_reasoning(path)
        if builder.profile.phase:
            # ``commentary`` before a tool call, ``final_answer`` for other text
            phase = "final_answer"
            for item in reversed(self.items):
                if item["type"] in CALLS:
                    phase = "commentary"
                elif "role" in item and item["role"] == "assistant":
                    item["phase"] = phase

    def add(self, item: Entry) -> None:
        self.builder.place(item, self.place)
        self.items.append(item)

    def write(self, text: str) -> None:
        # A plain string, since output_text parts would need the ids of messages that OpenAI has not
        # stored.
        if text and not text.isspace():
            self.add({"type": "message", "role": "assistant", "content": text})

    def drop_orphan_reasoning(self, path: str) -> None:
        while self.items and self.items[-1]["type"] == "reasoning":
            self.items.pop()
            self.builder.add_note(path, "ignored", "reasoning without its output is not sent")

    def add_tool_use(self, block: Block, path: str) -> None:
        call_id = self.start_call(block)
        if self.builder.target.recorded_calls:
            recorded = carried_fields(block["id"], self.builder.target)
            # A reasoning item goes where it was in its response: after ``number`` content blocks.
            for number, item in recorded.get(RECORDED_REASONING, ()):
                self.builder.place(item, self.place)
                self.items.insert(number + self._recorded_items, item)
                self._recorded_items += 1
        self.add(
            {
                "type": "function_call",
                "call_id": call_id,
                "name": upstream_name(block["name"]),
                "arguments": self.builder.arguments_json(block.get("input"), path),
            }
        )

    def add_mcp_call(self, block: Block, path: str) -> None:
        """Send a call of an MCP server back as the item that it was, if the request has the server.

        As text the model would imitate it: it would write calls instead of making them.
        """
        builder = self.builder
        label = upstream_name(block.get("server_name") or "")
        if not builder.profile.mcp or label not in map(upstream_name, builder.mcp_server_names):
            self.omit(block, path)
            return
        item: Entry = {
            "type": "mcp_call",
            "id": f"mcp_{block['id'].removeprefix(MCP_ID)}"[:MAX_ITEM_ID],
            "server_label": label,
            "name": block["name"],
            "arguments": builder.arguments_json(block.get("input"), path),
        }
        self._mcp_calls[block["id"]] = item
        self.add(item)

    def add_mcp_result(self, block: Block, path: str) -> None:
        item = self._mcp_calls.get(block["tool_use_id"])
        if item is not None:
            item["output"] = server_result_text(block)
        else:
            self.add_rendered_text(block, path)

    def add_thinking(self, block: Block, path: str) -> None:
        item = restore_reasoning(block, self.builder.target)
        if isinstance(item, str):
            self.builder.add_note(path, "ignored", item)
        else:
            self.add(item)

    def add_compaction(self, block: Block, path: str) -> None:
        item = restore_compaction(block, self.builder.target)
        if item is not None:
            self.add(item)
            return
        if block.get("content"):
            text = PART_BUILDER.text_part(block["content"])
            self.add({"type": "message", "role": "developer", "content": [text]})
        self.builder.add_note(path, "emulated", "a compaction is sent as its summary")


class InputItems(Conversation):
    """The items of all messages, without the top-level system prompt."""

    PARTS = PART_BUILDER
    MESSAGE: ClassVar = {"type": "message"}

    def add_assistant_turn(self, content: str | list[Block], path: str) -> list[str]:
        turn = ResponsesTurn(content, path, self.builder)
        self.entries += turn.items
        return turn.calls

    def add_system_text(self, parts: list[Part], path: str) -> None:
        self.add_message("developer", parts, path)

    def result_entry(self, call_id: str, output: Output) -> Entry:
        return {"type": "function_call_output", "call_id": call_id, "output": output}

    def set_effort(self, effort: str, number: int, path: str) -> None:
        profile = self.builder.profile
        if effort in profile.efforts and profile.configuration_update:
            update = {"type": "configuration_update", "reasoning": {"effort": effort}}
            self.user_entries.append(update)
        else:
            super().set_effort(effort, number, path)


def build_input(builder: RequestBuilder) -> list[Entry]:
    """Return the items of all messages, without the top-level system prompt."""
    history = InputItems(builder, media_in_output=builder.profile.media_in_tool_output)
    history.mark_last_user_message()
    items = history.entries
    if items and items[-1].get("role") == "assistant":
        # The Responses API starts a new turn after a final assistant message, so the model needs
        # the instruction to continue the message.
        path = f"messages.{len(builder.request['messages']) - 1}"
        builder.add_note(path, "emulated", "the model is instructed to continue the prefilled text")
        items.append(history.message("developer", [PART_BUILDER.text_part(CONTINUE)]))
    return items


def limit_breakpoints(items: list[Entry]) -> None:
    """Keep only the last four cache breakpoints, which cover the longest prefixes."""
    marked_parts = [
        part
        for item in items
        if isinstance(content := item.get("content"), list)
        for part in content
        if "prompt_cache_breakpoint" in part
    ]
    for part in marked_parts[:-MAX_BREAKPOINTS]:
        del part["prompt_cache_breakpoint"]
