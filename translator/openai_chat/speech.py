"""Text and reasoning of one answer, as segments: each becomes one block, in the order heard.

Chat deltas carry no block boundaries. A segment ends when the other kind begins or a tool call
starts; what comes later is a new block with a new index, never the old one again.
"""

from typing import Any, Final, Literal

from translator import carrier
from translator.anthropic.composer import Block, MessageComposer
from translator.anthropic.types import Event
from translator.notes import Note

from .details import details_text, merged_details
from .tags import ThinkTags

Kind = Literal["", "text", "thinking"]

UNCARRIED: Final = Note("content", "dropped", "opaque reasoning: no keys to carry it with")
UNCITED: Final = Note("content", "dropped", "a citation without its text")


class Speech:
    """Says text and reasoning through the composer and signs each reasoning segment."""

    def __init__(self, composer: MessageComposer) -> None:
        self.refusal = ""  # the refusal text, which is also said as text
        self.said = 0  # characters of text and reasoning, for estimates
        self._composer = composer
        self._kind: Kind = ""
        self._key: tuple[str, int] = ("speech", 0)  # of the segment; they are counted
        profile = composer.context.target.profile
        self._tags: ThinkTags | None = None
        if profile.think_tags or profile.think_tags_opened:
            self._tags = ThinkTags(opened=profile.think_tags_opened)
        self._details: list[dict[str, Any]] = []
        self.uncited: list[tuple[str, str | None, Any, Any]] = []  # citations that wait for text

    def say(self, piece: str) -> Block | None:
        """The block that more of this text may ``flow`` into; None where it is looked at first."""
        if self._tags is None:
            return self._text(piece)
        self._tagged(self._tags.feed(piece))
        return None

    def flow(self, block: Block, piece: str) -> list[Event]:
        """``say`` more of a text that flows."""
        self.said += len(piece)
        block.pieces.append(piece)
        return [self._composer.writer.text(piece)]

    def expect_tags(self) -> None:
        """What is said first is reasoning between tags, whatever the profile says."""
        if self._tags is None and not self.said:
            self._tags = ThinkTags()

    def told(self, kind: Kind) -> str:
        """All that was said of one kind."""
        blocks = [self._composer.block(("speech", n)) for n in range(1, self._key[1] + 1)]
        return "".join(b.said for b in blocks if b is not None and b.type == kind)

    def text_in(self, whole: Any) -> str:
        """The text of a whole content, without the reasoning that its tags enclose."""
        if not isinstance(whole, str) or self._tags is None:
            return whole if isinstance(whole, str) else ""
        profile = self._composer.context.target.profile
        tags = ThinkTags(opened=profile.think_tags_opened)
        return "".join(piece for kind, piece in tags.feed(whole) + tags.rest() if kind == "text")

    def refuse(self, piece: str) -> None:
        """Say a refusal: it is text to the client, and the reason why the answer stopped."""
        self.refusal += piece
        self._text(piece)

    def think(self, piece: str, details: list[dict[str, Any]]) -> None:
        """Say reasoning; ``details`` travel in the carrier."""
        piece = piece or details_text(details)
        self.said += len(piece)
        context = self._composer.context
        if context.thinking == "hidden" or not (piece or details):
            return
        if not piece and context.target.carrier_keys is None:
            if UNCARRIED not in self._composer.notes:
                self._composer.notes.append(UNCARRIED)
            return
        if self._kind != "thinking":
            self._turn_to("thinking")
        self._details += details
        self._composer.thinking(self._key, piece)

    def cite(self, url: str, title: str | None, start: Any, end: Any) -> None:
        """Attach a citation to the text being said; what comes before its text waits for it."""
        block = self._composer.block(self._key) if self._kind == "text" else None
        if block is None or (isinstance(end, int) and end > len(block.said)):
            self.uncited.append((url, title, start, end))
        else:
            self._cite(url, title, start, end)

    def _cite(self, url: str, title: str | None, start: Any, end: Any) -> None:
        block = self._composer.block(self._key)
        bounded = isinstance(start, int) and isinstance(end, int) and 0 <= start <= end
        citation = {
            "type": "web_search_result_location",
            "url": url,
            "title": title,
            "cited_text": block.said[start:end] if bounded and block is not None else "",
            "encrypted_index": "",  # required by the type; there is no index to encrypt
        }
        self._composer.citation(self._key, citation)

    def pause(self) -> None:
        """End the segment: something else speaks now, or nobody does any more."""
        if self._tags is not None:
            self._tagged(self._tags.rest())
        match self._kind:
            case "text":
                if self.uncited:
                    for waiting in self.uncited:
                        self._cite(*waiting)
                    self.uncited.clear()
                self._composer.close(self._key)
            case "thinking":
                self._composer.sign(self._key, self._signature())
        self._kind, self._details = "", []

    def cut(self) -> None:
        """The answer breaks off: what was held back for its tags is told as far as it came."""
        if self._tags is not None:
            self._tagged(self._tags.rest())

    def _text(self, piece: str) -> Block | None:
        self.said += len(piece)
        if self._kind != "text":
            self._turn_to("text")
        return self._composer.text(self._key, piece)

    def _tagged(self, parts: list[tuple[Literal["text", "thinking"], str]]) -> None:
        for kind, piece in parts:
            if kind == "text":
                self._text(piece)
            else:
                self.think(piece, [])

    def _turn_to(self, kind: Kind) -> None:
        """Begin another segment."""
        if self._kind:
            # The splitter asks us to speak; it holds nothing back that belongs to the old segment.
            tags, self._tags = self._tags, None
            self.pause()
            self._tags = tags
        self._kind = kind
        self._key = ("speech", self._key[1] + 1)

    def _signature(self) -> str:
        context = self._composer.context
        target = context.target
        if target.carrier_keys is None:
            return ""
        details: Any = merged_details(self._details) or None
        block = self._composer.block(self._key)
        if context.thinking == "omitted" and details is None and block is not None:
            details = {"text": block.said}  # the block shows none, so the carrier must hold it
        reasoning = carrier.Reasoning(
            upstream=target.upstream,
            model=target.model,
            api="chat",
            details=details,
        )
        return carrier.mint(reasoning, target.carrier_keys)
