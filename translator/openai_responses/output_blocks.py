"""Write output items as blocks: text, citations, refusals, reasoning, calls, hosted tools.

Upstreams send the same content several times, first in pieces and then complete; each method sends
only what is missing. The content sent so far is stored for each item and part.
"""

from typing import Any, Final

from translator.anthropic.token_estimate import CALL_CHARACTERS
from translator.dialect import TranslationTarget, UpstreamCall
from translator.message_stream.message_composer import MessageComposer
from translator.message_stream.open_block import Key
from translator.message_stream.response_stream import IMAGE, REPLACED_IMAGE, cite_annotation
from translator.notes import Note
from translator.request.id_mapping import client_call_id, record_name
from translator.stream.text_buffer import TextBuffer
from translator.stream.tool_arguments import compact_json

from .hosted_tools import BLOCK_BUILDERS, was_requested
from .output_items import INITIAL_TEXT_KINDS, Channel, ItemState, PartState
from .reasoning import RECORDED_REASONING, SEPARATORS, compaction_block
from .types import OutputItem


def sign_reasoning(item: ItemState, body: OutputItem, target: TranslationTarget) -> str:
    """Return the thinking block signature of a finished reasoning item; "" without signing keys."""
    if target.signing_keys is None:
        return ""
    encrypted = body.get("encrypted_content")
    lengths = [len(part.text) for (kind, _), part in item.parts.items() if kind == item.channel]
    return target.sign(
        "responses",
        item_id=item.id,
        encrypted_content=encrypted if isinstance(encrypted, str) else None,
        part_lengths=tuple(length for length in lengths if length),
        text_kind=item.channel or "summary",
    )


LONG_ID: Final = Note("content", "dropped", "a call id that is too long")
HIDDEN_REASONING: Final = Note(
    "content", "ignored", "encrypted reasoning is not kept, because no thinking was requested"
)
ITEM_FIELDS: Final = ("type", "id", "summary", "content", "encrypted_content")
"""Fields of a reasoning item that go back to the upstream."""


class CallIds:
    """Issues the ids of tool calls to the client, and records what these ids cannot carry.

    A client that asked for no thinking gets no thinking blocks, which carry encrypted reasoning to
    later requests. The upstream needs this reasoning together with the calls that follow from it,
    so it is recorded with the next call.
    """

    def __init__(self, composer: MessageComposer) -> None:
        self._composer = composer
        self._used_ids = set(composer.context.call_ids)  # call ids that the client already has
        # Hidden reasoning items, each with the number of content blocks before it.
        self._reasoning: list[tuple[int, dict[str, Any]]] = []
        self._last_id = ""

    def issue(self, call_id: str) -> str:
        """Return the client's id for a call of the upstream."""
        id_, lost = client_call_id(call_id, self._used_ids, self._composer.context.target)
        self._used_ids.add(id_)
        self._last_id = id_
        if lost is not None:
            self._composer.record_call(record_name(id_), lost, LONG_ID)
        if self._reasoning:
            self._record_reasoning()
        return id_

    def add_reasoning(self, body: OutputItem) -> None:
        """Keep a finished reasoning item for the next call, if the client does not see it."""
        if self._composer.context.thinking == "hidden" and body.get("encrypted_content"):
            item: dict[str, Any] = {name: body[name] for name in ITEM_FIELDS if name in body}
            self._reasoning.append((self._composer.block_count, item))

    def finish(self) -> None:
        """At the end of the response, record reasoning that no call follows with the last call."""
        if self._reasoning and self._last_id:
            self._record_reasoning()
        elif self._reasoning:
            self._composer.add_note(HIDDEN_REASONING)

    def _record_reasoning(self) -> None:
        name = record_name(self._last_id)
        recorded = self._composer.call_records.get(name, UpstreamCall("", {}))
        items = [*recorded.fields.get(RECORDED_REASONING, ()), *self._reasoning]
        call = UpstreamCall(recorded.id, {RECORDED_REASONING: items})
        self._composer.record_call(name, call, HIDDEN_REASONING)
        self._reasoning.clear()


class OutputBlocks:
    """Converts the content of output items to the events of one message."""

    def __init__(self, composer: MessageComposer) -> None:
        self.composer = composer
        self._refusal = TextBuffer()
        self.searches = 0  # number of web searches sent
        self.waits_for_approval = False  # an item needs an approval, which no client can give
        self.characters = 0  # number of characters in all content, to estimate the output tokens
        self.items_with_initial_text: list[ItemState] = []  # their initial text may not be sent yet
        self.open_inputs: list[ItemState] = []  # custom tool calls whose input has started
        self._open_items: dict[int, ItemState] = {}  # whose text or reasoning may be open, by key
        self.last_arguments: str | None = None  # of the call that was finished last
        self.call_ids = CallIds(composer)

    @property
    def refusal(self) -> str:
        """The model's refusal so far, which is also sent as text."""
        return self._refusal.getvalue()

    # Text

    def add_text(self, item: ItemState, number: int, piece: Any) -> None:
        """Add text to a part of an item; the first character opens the part's block."""
        if item.is_done or not isinstance(piece, str) or not piece:
            return
        part = item.get_part("text", number)
        part.finished_part = None
        if part.initial_text:
            piece = part.with_initial_text(piece)
        self.characters += len(piece)
        if not part.blocks:
            item.has_whole_text = False
            self._end_others(item)
        block = self.composer.add_text((item.key, "text", number), piece)
        if block is not None and (not part.blocks or part.blocks[-1] is not block):
            part.blocks.append(block)

    def finish_text(self, item: ItemState, number: int, text: Any) -> None:
        self.add_text(item, number, self._missing_text(item.get_part("text", number), text))
        item.has_whole_text = True

    def add_refusal(self, item: ItemState, number: int, piece: Any) -> None:
        """Add a piece of the model's refusal: it is sent as text and sets the stop reason."""
        if not item.is_done and isinstance(piece, str):
            self._refusal.append(piece)
        self.add_text(item, number, piece)

    def finish_refusal(self, item: ItemState, number: int, text: Any) -> None:
        self.add_refusal(item, number, self._missing_text(item.get_part("text", number), text))

    def add_citation(self, item: ItemState, number: int, annotation: Any) -> None:
        """Add a citation to the text, or store it until the cited text has arrived."""
        part = item.get_part("text", number)
        if (
            not isinstance(annotation, dict)
            or item.is_done
            or (name := compact_json(annotation)) in part.annotations
        ):
            return
        part.annotations.add(name)
        if isinstance(annotation.get("url_citation"), dict):  # nested as in Chat Completions
            annotation = {**annotation, **annotation["url_citation"]}
        if annotation.get("type") != "url_citation":
            self._add_note("dropped", f"a {annotation.get('type')} has no form as a citation")
            return
        part.pending_annotations.append(annotation)
        end = annotation.get("end_index")
        if not isinstance(end, int) or end <= part.length:
            self._flush_citations((item.key, "text", number), part)

    def close_text(
        self, item: ItemState, number: int, finished_part: dict[str, Any] | None = None
    ) -> None:
        """Send pending citations and close the text block; ``finished_part`` is the full part."""
        part = item.parts.get(("text", number))
        if part is None:
            return
        part.finished_part = finished_part
        if part.pending_annotations:
            self._flush_citations((item.key, "text", number), part)
        self.composer.close_block((item.key, "text", number))

    def finish_part(self, item: ItemState, number: int, part: Any) -> None:
        """Finish a content part of a message; the finished item will repeat this content."""
        if not isinstance(part, dict):
            if not isinstance(part, str):
                return
            part = {"text": part}
        known_part = item.parts.get(("text", number))
        if known_part is not None and known_part.finished_part == part:
            return
        match part.get("type"):
            case "output_text" | "text" | None:
                self.finish_text(item, number, part.get("text"))
            case "refusal":
                self.finish_refusal(item, number, part.get("refusal"))
            case "output_image" | "image" | "image_url":
                self.finish_text(item, number, IMAGE)
                self.composer.add_note(REPLACED_IMAGE)
            case kind:
                self._add_note("dropped", f"a content part of type {kind!r} has no block")
        for annotation in _list(part.get("annotations")):
            self.add_citation(item, number, annotation)
        self.close_text(item, number, part)

    # Reasoning

    def add_summary(self, item: ItemState, number: int, piece: Any) -> None:
        self._add_thinking(item, "summary", number, piece)

    def add_reasoning_text(self, item: ItemState, number: int, piece: Any) -> None:
        self._add_thinking(item, "content", number, piece)

    def finish_summary(self, item: ItemState, number: int, text: Any) -> None:
        part = item.parts.get(("summary", number)) or PartState()
        self._add_thinking(item, "summary", number, self._missing_text(part, text))
        item.has_whole_text = True

    def finish_reasoning_text(self, item: ItemState, number: int, text: Any) -> None:
        part = item.parts.get(("content", number)) or PartState()
        self._add_thinking(item, "content", number, self._missing_text(part, text))
        item.has_whole_text = True

    def _add_thinking(self, item: ItemState, channel: Channel, number: int, piece: Any) -> None:
        """Add reasoning. If an item has both a summary and a full text, the first one is shown."""
        if item.is_done or not isinstance(piece, str) or not piece:
            return
        if item.channel not in ("", channel):
            return
        item.has_whole_text = False
        if not item.channel:
            self._end_others(item)
        separator = SEPARATORS[channel] if item.channel else ""
        item.channel = channel
        part = item.get_part(channel, number)
        if part.initial_text:
            piece = part.with_initial_text(piece)
        prefix = separator if part.append(piece) else ""
        self.characters += len(piece)
        self.composer.add_thinking((item.key, "thinking"), prefix + piece)

    def close_reasoning(self, item: ItemState, body: OutputItem) -> None:
        """Finish a reasoning item: send the missing text, then the signature.

        The full text is sent rather than the summary, unless summary text was sent before.
        """
        for channel, finish in (
            ("content", self.finish_reasoning_text),
            ("summary", self.finish_summary),
        ):
            parts = _list(body.get(channel))
            for number, part in zip(item.part_numbers(channel, len(parts)), parts, strict=True):
                finish(item, number, part.get("text") if isinstance(part, dict) else part)
        if self.items_with_initial_text:
            self.emit_initial_text(item)
        self.call_ids.add_reasoning(body)
        signature = sign_reasoning(item, body, self.composer.context.target)
        # In other cases there is neither text to show nor reasoning to sign.
        if item.channel or (signature and body.get("encrypted_content")):
            self.composer.close_thinking((item.key, "thinking"), signature)

    def _end_others(self, item: ItemState) -> None:
        """End the text and reasoning of other items where the content of ``item`` starts.

        Some servers finish all items at the end of the response, and the new content must not wait
        for that. An item ends if its own content is complete or if the upstream sends one item
        after the other.
        """
        ended = [
            other
            for other in self._open_items.values()
            if other is not item and (item.ends_others or other.has_whole_text)
        ]
        target = self.composer.context.target
        for other in ended:
            del self._open_items[other.key]
            # Encrypted reasoning is not known yet, and would go into the signature.
            if other.channel and not target.profile.encrypted_reasoning:
                signature = sign_reasoning(other, {}, target)
                self.composer.close_thinking((other.key, "thinking"), signature)
        self._open_items[item.key] = item
        for other in ended:
            self._close_texts(other)

    # Tool calls

    def start_call(self, item: ItemState) -> None:
        """Start a tool call's block, once the call's name and id are known."""
        if item.is_started or item.is_done or not (item.name and item.call_id):
            return
        item.is_started = True
        self.characters += len(item.name) + CALL_CHARACTERS
        self._end_others(item)
        call_id = self.call_ids.issue(item.call_id)
        self.composer.start_tool_call((item.key, "call"), id=call_id, name=item.name)
        self.composer.add_arguments((item.key, "call"), "".join(item.pending_arguments))

    def add_arguments(self, item: ItemState, number: int, piece: Any) -> None:
        if item.is_done or not isinstance(piece, str):
            return
        if item.initial_arguments and piece:
            piece = item.with_initial_arguments(piece)
        self.characters += len(piece)
        item.argument_characters += len(piece)
        if item.is_started:
            self.composer.add_arguments((item.key, "call"), piece)
        else:
            item.pending_arguments.append(piece)

    def finish_arguments(self, item: ItemState, number: int, arguments: Any) -> None:
        """Take a call's complete arguments: send those not sent yet and close the call's block."""
        text = arguments if isinstance(arguments, str) else ""
        if isinstance(arguments, dict):
            text = compact_json(arguments)
        text, item.initial_arguments = text or item.initial_arguments, ""
        self.characters += max(0, len(text) - item.argument_characters)
        item.argument_characters = max(item.argument_characters, len(text))
        self.start_call(item)
        if not item.is_started:
            item.pending_arguments = [text] if text else item.pending_arguments
            return  # output_item.done will contain the name
        self.composer.finish_arguments((item.key, "call"), text)
        block = self.composer.find_block((item.key, "call"))
        self.last_arguments = block.text if block is not None else None
        self.composer.close_block((item.key, "call"))

    def add_input_text(self, item: ItemState, number: int, piece: Any) -> None:
        """Add a piece of a custom tool's input, a text that is sent as one object at its end."""
        if item.is_done or not isinstance(piece, str) or not piece:
            return
        part = item.get_part("input", 0)
        if part.append(piece):
            self.open_inputs.append(item)
        self.characters += len(piece)
        item.argument_characters += len(piece)

    def finish_input(self, item: ItemState, number: int, text: Any) -> None:
        """Finish a custom tool's input; if ``text`` is None, use the pieces received so far."""
        if isinstance(text, dict | list):
            text = compact_json(text)
        if not isinstance(text, str) or not text:
            text = item.get_part("input", 0).text
        self.finish_arguments(item, number, {"input": text})

    def finish_inputs(self) -> None:
        """Finish the open inputs of custom tools from their pieces, at the end of the response."""
        for item in self.open_inputs:
            if not item.is_done:
                self.finish_input(item, 0, None)
        self.open_inputs.clear()

    def truncate_inputs(self) -> None:
        """End the open inputs of a truncated response as invalid JSON, which cannot be executed."""
        for item in self.open_inputs:
            arguments = compact_json({"input": item.get_part("input", 0).text})
            self.composer.add_arguments((item.key, "call"), arguments.removesuffix('"}'))
        self.open_inputs.clear()

    def close_call(self, item: ItemState, body: OutputItem) -> None:
        """Finish a tool call; drop a call without a name, because no client could execute it."""
        item.call_id = item.call_id or item.id or "call"
        if not item.name:
            self._add_note("dropped", "a tool call without a name")
        elif item.type == "custom_tool_call":
            self.finish_input(item, 0, body.get("input"))
        else:
            self.finish_arguments(item, 0, body.get("arguments"))

    # Initial content: text or arguments in the event that adds an item or part

    def add_initial_parts(self, item: ItemState, parts: Any) -> None:
        """Store the initial text of an added item's parts."""
        for number, part in enumerate(_list(parts)):
            self.add_initial_part(item, number, part)

    def add_initial_arguments(self, item: ItemState, arguments: Any) -> None:
        """Store the initial arguments of an added call; later arguments replace an empty object."""
        if (
            isinstance(arguments, str)
            and arguments
            and not (item.argument_characters or item.is_done)
        ):
            item.initial_arguments = arguments
            self.items_with_initial_text.append(item)

    def add_initial_part(self, item: ItemState, number: int, part: Any) -> None:
        """Store the initial text of an added part, which the following deltas may repeat."""
        kind = INITIAL_TEXT_KINDS.get(str(part.get("type"))) if isinstance(part, dict) else None
        if kind is None or item.is_done or not isinstance(part.get("text"), str):
            return
        part_state = item.get_part(kind, number)
        if not part_state.text:
            part_state.initial_text = part["text"]
            self.items_with_initial_text.append(item)

    def emit_initial_text(self, item: ItemState) -> None:
        """Send initial text that no delta repeated, not even under another part number."""
        for (kind, number), part in list(item.parts.items()):
            texts = (
                state.text for (part_kind, _), state in item.parts.items() if part_kind == kind
            )
            if not part.initial_text or any(state.startswith(part.initial_text) for state in texts):
                continue
            add = {"text": self.add_text, "summary": self.add_summary}.get(kind)
            (add or self.add_reasoning_text)(item, number, part.initial_text)

    def flush_initial_text(self) -> None:
        """Send all initial text and arguments that nothing repeated, at the end of the response."""
        for item in self.items_with_initial_text:
            if item.initial_arguments:
                self.add_arguments(item, 0, item.initial_arguments)
            self.emit_initial_text(item)
        self.items_with_initial_text.clear()

    # Finished items

    def finish_item(self, item: ItemState, body: OutputItem) -> None:
        """Finish an output item; finishing it again has no effect."""
        if item.is_done:
            return
        match item.type:
            case "message":
                parts = body.get("content")
                if not isinstance(parts, list):
                    # A few servers send a string or one part instead of the list of parts.
                    parts = [parts] if isinstance(parts, str | dict) else []
                for number, finished in zip(
                    item.part_numbers("text", len(parts)), parts, strict=True
                ):
                    self.finish_part(item, number, finished)
                if self.items_with_initial_text:
                    self.emit_initial_text(item)
                self._close_texts(item)
            case "reasoning":
                self.close_reasoning(item, body)
            case "function_call" | "custom_tool_call":
                self.close_call(item, body)
            case "mcp_list_tools" if not body.get("error"):
                pass  # a list of available MCP tools is not content
            case "mcp_approval_request":
                self.waits_for_approval = True
            case "image_generation_call" if body.get("result"):
                self.add_text(item, 0, IMAGE)
                self.close_text(item, 0)
                self.composer.add_note(REPLACED_IMAGE)
            case kind if kind in BLOCK_BUILDERS:
                self._add_hosted_call(item, body)
            case _:
                # A compaction is sent if it can be signed.
                context = self.composer.context
                block = None
                if item.type == "compaction" and context.returns_compaction:
                    block = compaction_block(body, context.target)
                if block is None:
                    self._add_note("dropped", f"an output item of type {item.type!r} has no block")
                else:
                    self.composer.add_complete_block((item.key, "compaction"), block)
        item.is_done = True
        self._open_items.pop(item.key, None)

    def _close_texts(self, item: ItemState) -> None:
        for (_, number), part in item.parts.items():
            if part.finished_part is None:
                self.close_text(item, number)

    def _add_hosted_call(self, item: ItemState, body: OutputItem) -> None:
        """Send the blocks of a hosted tool call, a call of a tool that OpenAI ran itself."""
        if not was_requested(item.type, self.composer.context):
            self._add_note("dropped", f"a {item.type} was not requested")
            return
        self.searches += item.type == "web_search_call"
        for number, block in enumerate(BLOCK_BUILDERS[item.type](body)):
            key = (item.key, "hosted", number)
            if block["type"] == "server_tool_use":
                self.composer.add_server_tool_use(key, block)
            else:
                self.composer.add_complete_block(key, block)

    def _flush_citations(self, key: Key, part: PartState) -> None:
        text = part.text
        for annotation in part.pending_annotations:
            self.composer.add_citation(key, cite_annotation(annotation, text))
        part.pending_annotations.clear()

    def _missing_text(self, part: PartState, text: Any) -> str:
        """Return the end of a part's complete ``text``, after the text that was already sent."""
        streamed = part.length
        if not isinstance(text, str) or not (text or streamed):
            return ""
        is_whole = len(text) >= streamed and text.startswith(part.text)
        if is_whole and len(text) == streamed:
            return ""
        part.initial_text = ""
        if is_whole:
            return text[streamed:]
        self._add_note("ignored", "the finished text differs from the streamed text")
        return ""

    def _add_note(self, fate: Any, reason: str) -> None:
        self.composer.add_note(Note("content", fate, reason))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
