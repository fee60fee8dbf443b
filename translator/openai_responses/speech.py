"""Says output items as blocks: text, citations, refusals, reasoning, calls, hosted tools.

Every method may be told the same thing twice, piece by piece and then whole; only what is
missing is said. What was said is remembered per item and part, in the upstream's own counting.
"""

from typing import Any, Final

from translator.anthropic.composer import Block, Key, MessageComposer
from translator.anthropic.types import Event
from translator.arguments import compact_json
from translator.names import client_call_id
from translator.notes import Note

from .hosted import CAPABILITY, HOSTED
from .items import OPENINGS, Channel, Item, Part
from .reasoning import JOINTS, compaction_block, signature_of
from .types import OutputItem

IMAGE: Final = "[an image was generated that cannot be shown here]"
"""An assistant's answer has no block for pictures."""


class Speech:
    """Turns what items say into events of one message."""

    def __init__(self, composer: MessageComposer) -> None:
        self.composer = composer
        self.refusal = ""  # what was said instead of an answer
        self.searches = 0  # web searches that were told
        self.waits = False  # for an approval, which nobody here can give
        self.characters = 0  # said in any form, for estimates
        self.opened: list[Item] = []  # which may have begun with a text that is not said yet
        self.inputs: list[Item] = []  # calls of custom tools whose text has begun
        self._call_ids = set(composer.context.call_ids)  # that the client has

    # Text

    def text(self, item: Item, number: int, piece: Any) -> Block | None:
        """The block that says this piece; None where nobody does."""
        if item.done or not isinstance(piece, str) or not piece:
            return None
        part = item.part("text", number)
        part.told = None
        if part.opening:
            piece = part.first(piece)
        self.characters += len(piece)
        block = self.composer.text((item.key, "text", number), piece)
        if block is not None and (not part.blocks or part.blocks[-1] is not block):
            part.blocks.append(block)
        return block

    def flow(self, block: Block, piece: str) -> list[Event]:
        """``text`` for one who knows that it flows into this block."""
        self.characters += len(piece)
        block.pieces.append(piece)
        return [self.composer.writer.text(piece)]

    def whole_text(self, item: Item, number: int, text: Any) -> None:
        missing = self._missing(item.part("text", number), text)
        if missing:
            self.text(item, number, missing)

    def refuse(self, item: Item, number: int, piece: Any) -> None:
        """Say a refusal, which is text to the client; the stop reason tells the difference."""
        if not item.done and isinstance(piece, str):
            self.refusal += piece
        self.text(item, number, piece)

    def whole_refusal(self, item: Item, number: int, text: Any) -> None:
        missing = self._missing(item.part("text", number), text)
        if missing:
            self.refuse(item, number, missing)

    def cite(self, item: Item, number: int, annotation: Any) -> None:
        """Attach a citation to the text; one that came too early waits for the text it quotes."""
        part = item.part("text", number)
        if not isinstance(annotation, dict) or item.done or annotation in part.cited:
            return
        part.cited.append(annotation)
        if isinstance(annotation.get("url_citation"), dict):  # as Chat nests it
            annotation = {**annotation, **annotation["url_citation"]}
        if annotation.get("type") != "url_citation":
            self._note("dropped", f"a {annotation.get('type')} has no form as a citation")
            return
        part.waiting.append(annotation)
        end = annotation.get("end_index")
        if not isinstance(end, int) or end <= len(part.said):
            self._cite_waiting((item.key, "text", number), part)

    def end_text(self, item: Item, number: int, told: dict[str, Any] | None = None) -> None:
        """The upstream is done with this text: what waits for it is attached, its block closes.

        ``told``: all of it, as the upstream has it.
        """
        part = item.parts.get(("text", number))
        if part is None:
            return
        part.told = told
        if part.waiting:
            self._cite_waiting((item.key, "text", number), part)
        self.composer.close((item.key, "text", number))

    def whole_part(self, item: Item, number: int, part: Any) -> None:
        """A finished content part of a message; its item tells it again."""
        if not isinstance(part, dict):
            if not isinstance(part, str):
                return
            part = {"text": part}
        heard = item.parts.get(("text", number))
        if heard is not None and heard.told == part:
            return
        match part.get("type"):
            case "output_text" | "text" | None:
                self.whole_text(item, number, part.get("text"))
            case "refusal":
                self.whole_refusal(item, number, part.get("refusal"))
            case kind:
                self._note("dropped", f"a content part of type {kind!r} has no block")
        if part.get("annotations"):
            for annotation in _list(part["annotations"]):
                self.cite(item, number, annotation)
        self.end_text(item, number, part)

    # Reasoning

    def summary(self, item: Item, number: int, piece: Any) -> None:
        self._think(item, "summary", number, piece)

    def thought(self, item: Item, number: int, piece: Any) -> None:
        self._think(item, "content", number, piece)

    def whole_summary(self, item: Item, number: int, text: Any) -> None:
        part = item.parts.get(("summary", number)) or Part()
        self._think(item, "summary", number, self._missing(part, text))

    def whole_thought(self, item: Item, number: int, text: Any) -> None:
        part = item.parts.get(("content", number)) or Part()
        self._think(item, "content", number, self._missing(part, text))

    def _think(self, item: Item, channel: Channel, number: int, piece: Any) -> None:
        """Say reasoning. An item may tell a summary and the text itself; the first one is shown."""
        if item.done or not isinstance(piece, str) or not piece:
            return
        if item.channel not in ("", channel):
            return
        joint = JOINTS[channel] if item.channel else ""
        item.channel = channel
        part = item.part(channel, number)
        if part.opening:
            piece = part.first(piece)
        lead = joint if part.add(piece) else ""
        self.characters += len(piece)
        self.composer.thinking((item.key, "thinking"), lead + piece)

    def end_reasoning(self, item: Item, body: OutputItem) -> None:
        """A finished reasoning item: the missing text, then the signature that carries it.

        The text itself beats a summary, unless the summary was shown before.
        """
        for channel, say in (("content", self.whole_thought), ("summary", self.whole_summary)):
            parts = _list(body.get(channel))
            for number, part in zip(item.numbers(channel, len(parts)), parts, strict=True):
                say(item, number, part.get("text") if isinstance(part, dict) else part)
        if self.opened:
            self.say_openings(item)
        signature = signature_of(item, body, self.composer.context.target)
        # Else there is nothing to show and nothing to carry.
        if item.channel or (signature and body.get("encrypted_content")):
            self.composer.sign((item.key, "thinking"), signature)

    # Calls

    def begin_call(self, item: Item) -> None:
        """Start a call's block, once its name and id are known."""
        if item.begun or item.done or not (item.name and item.call_id):
            return
        item.begun = True
        call_id = client_call_id(item.call_id, self._call_ids)
        self._call_ids.add(call_id)
        self.composer.tool((item.key, "call"), id=call_id, name=item.name)
        self.composer.arguments((item.key, "call"), "".join(item.waiting))

    def arguments(self, item: Item, number: int, piece: Any) -> None:
        if item.done or not isinstance(piece, str):
            return
        if item.opening and piece:
            piece = item.first(piece)
        self.characters += len(piece)
        item.heard += len(piece)
        if item.begun:
            self.composer.arguments((item.key, "call"), piece)
        else:
            item.waiting.append(piece)

    def whole_arguments(self, item: Item, number: int, arguments: Any) -> None:
        """All of a call's arguments: send what is missing and close its block."""
        text = arguments if isinstance(arguments, str) else ""
        if isinstance(arguments, dict):
            text = compact_json(arguments)
        text, item.opening = text or item.opening, ""
        self.characters += max(0, len(text) - item.heard)
        item.heard = max(item.heard, len(text))
        self.begin_call(item)
        if not item.begun:
            item.waiting = [text] if text else item.waiting
            return  # output_item.done tells the name
        self.composer.whole_arguments((item.key, "call"), text)
        self.composer.close((item.key, "call"))

    def input_text(self, item: Item, number: int, piece: Any) -> None:
        """A custom tool's input, which is text; it leaves as one object at its end."""
        if item.done or not isinstance(piece, str) or not piece:
            return
        part = item.part("input", 0)
        if part.add(piece):
            self.inputs.append(item)
        self.characters += len(piece)
        item.heard += len(piece)

    def whole_input(self, item: Item, number: int, text: Any) -> None:
        """All of a custom tool's input; what was heard of it, where the end tells none."""
        if isinstance(text, dict | list):
            text = compact_json(text)
        if not isinstance(text, str) or not text:
            text = item.part("input", 0).said
        self.whole_arguments(item, number, {"input": text})

    def end_inputs(self) -> None:
        """The answer is whole: inputs of custom tools whose end was not told are what was heard."""
        for item in self.inputs:
            if not item.done:
                self.whole_input(item, 0, None)
        self.inputs.clear()

    def cut_inputs(self) -> None:
        """The answer was cut: an input stays broken JSON, as the arguments of a function do.

        Half a command must not become a command.
        """
        for item in self.inputs:
            said = compact_json({"input": item.part("input", 0).said})
            self.composer.arguments((item.key, "call"), said.removesuffix('"}'))
        self.inputs.clear()

    def end_call(self, item: Item, body: OutputItem) -> None:
        """A finished call; one that never told its name cannot be executed and is dropped."""
        item.call_id = item.call_id or item.id or "call"
        if not item.name:
            self._note("dropped", "a tool call without a name")
        elif item.type == "custom_tool_call":
            self.whole_input(item, 0, body.get("input"))
        else:
            self.whole_arguments(item, 0, body.get("arguments"))

    # What an item or part is added with

    def open_parts(self, item: Item, parts: Any) -> None:
        """Keep what an item tells of its parts before any of it was said."""
        for number, part in enumerate(_list(parts)):
            self.open_part(item, number, part)

    def open_call(self, item: Item, arguments: Any) -> None:
        """Likewise the arguments of a call; an empty object is none of them where others come."""
        if isinstance(arguments, str) and arguments and not (item.heard or item.done):
            item.opening = arguments
            self.opened.append(item)

    def open_part(self, item: Item, number: int, part: Any) -> None:
        """Keep what a part begins with: whether its deltas say it again is yet to be seen."""
        kind = OPENINGS.get(str(part.get("type"))) if isinstance(part, dict) else None
        if kind is None or item.done or not isinstance(part.get("text"), str):
            return
        opened = item.part(kind, number)
        if not opened.said:
            opened.opening = part["text"]
            self.opened.append(item)

    def say_openings(self, item: Item) -> None:
        """Say what nothing told again; who counts parts otherwise told it under another number."""
        for (kind, number), part in list(item.parts.items()):
            said = (each.said for (same, _), each in item.parts.items() if same == kind)
            if not part.opening or any(each.startswith(part.opening) for each in said):
                continue
            say = {"text": self.text, "summary": self.summary, "content": self.thought}[kind]
            say(item, number, part.opening)

    def end_openings(self) -> None:
        """The answer has ended, or was cut: nothing will be told again."""
        for item in self.opened:
            if item.opening:
                self.arguments(item, 0, item.opening)
            self.say_openings(item)
        self.opened.clear()

    # Whole items

    def end_item(self, item: Item, body: OutputItem) -> None:
        """A finished output item; twice is once."""
        if item.done:
            return
        match item.type:
            case "message":
                self._end_message(item, body)
            case "reasoning":
                self.end_reasoning(item, body)
            case "function_call" | "custom_tool_call":
                self.end_call(item, body)
            case "mcp_list_tools" if not body.get("error"):
                pass  # whose tools can be called is nothing that was asked
            case "mcp_approval_request":
                self.waits = True
            case "image_generation_call" if body.get("result"):
                self.text(item, 0, IMAGE)
                self.end_text(item, 0)
                self._note("emulated", "a generated image is told as text")
            case kind if kind in HOSTED:
                self._hosted(item, body)
            case _:
                self._unusual(item, body)
        item.done = True

    def _end_message(self, item: Item, body: OutputItem) -> None:
        parts = body.get("content")
        if not isinstance(parts, list):
            # A few servers write the text itself where its parts belong.
            parts = [parts] if isinstance(parts, str | dict) else []
        for number, whole in zip(item.numbers("text", len(parts)), parts, strict=True):
            self.whole_part(item, number, whole)
        if self.opened:
            self.say_openings(item)
        for (_, number), part in item.parts.items():
            if part.told is None:
                self.end_text(item, number)

    def _unusual(self, item: Item, body: OutputItem) -> None:
        """A compaction, which only the upstream that made it can read; nothing else has a block."""
        context = self.composer.context
        block = None
        if item.type == "compaction" and context.compacts:
            block = compaction_block(body, context.target)
        if block is None:
            self._note("dropped", f"an output item of type {item.type!r} has no block")
        else:
            self.composer.whole_block((item.key, "compaction"), block)

    def _hosted(self, item: Item, body: OutputItem) -> None:
        """A call of a tool that OpenAI ran itself."""
        capability = CAPABILITY.get(item.type)
        if capability and not getattr(self.composer.context.target.profile, capability):
            self._note("dropped", f"nobody asked for a {item.type}")
            return
        self.searches += item.type == "web_search_call"
        for number, block in enumerate(HOSTED[item.type](body)):
            key = (item.key, "hosted", number)
            if block["type"] == "server_tool_use":
                self.composer.server_tool(key, block)
            else:
                self.composer.whole_block(key, block)

    def _cite_waiting(self, key: Key, part: Part) -> None:
        for annotation in part.waiting:
            self.composer.citation(key, _citation(annotation, part.said))
        part.waiting.clear()

    def _missing(self, part: Part, text: Any) -> str:
        """What of a whole text was not said yet."""
        said = part.said
        if text == said or not isinstance(text, str):
            return ""
        part.opening = ""
        if text.startswith(said):
            return text[len(said) :]
        self._note("ignored", "the finished text differs from what was streamed of it")
        return ""

    def _note(self, fate: Any, reason: str) -> None:
        note = Note("content", fate, reason)
        if note not in self.composer.notes:
            self.composer.notes.append(note)


def _citation(annotation: dict[str, Any], text: str) -> dict[str, Any]:
    start, end = annotation.get("start_index"), annotation.get("end_index")
    quoted = text[start:end] if isinstance(start, int) and isinstance(end, int) else ""
    url, title = annotation.get("url"), annotation.get("title")
    return {
        "type": "web_search_result_location",
        "url": url if isinstance(url, str) else "",
        "title": title if isinstance(title, str) else None,
        "cited_text": quoted,
        "encrypted_index": "",
    }


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
