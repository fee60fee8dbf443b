"""Split text and reasoning of one response into segments; each becomes one content block.

Chat Completions deltas have no block boundaries. A segment ends when the other kind of content or a
tool call begins; later content becomes a new block with a new index.
"""

import enum
from typing import Any, Final, Literal

from translator.message_stream.message_composer import MessageComposer
from translator.message_stream.response_stream import MAX_CITED_TEXT, web_citation
from translator.notes import Note
from translator.stream.text_buffer import TextBuffer

from .reasoning import details_text, merge_details

THINK_CLOSE: Final = "</think>"
TAGS: Final = {
    "<think>": THINK_CLOSE,
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",  # Gemini
    "<reasoning>": "</reasoning>",  # gpt-oss on Bedrock
}
"""Opening tag -> closing tag."""

TaggedText = tuple[Literal["text", "thinking"], str]


class State(enum.Enum):
    UNDECIDED = "undecided"  # the text so far may be the start of an opening tag
    MAYBE_INSIDE = "opened"  # text is buffered: it is reasoning if a closing tag follows
    INSIDE = "inside"  # the text is reasoning, until the closing tag
    TRIMMING = "trimming"  # drop white space after the closing tag
    TEXT = "text"


class ThinkTags:
    """Separates ``<think>…</think>`` at the start of a response from its text.

    This is done only for servers whose profile requires it or that announce such reasoning
    (Gemini), because a normal text may contain such tags. If the server's chat template puts the
    opening tag into the prompt, only the closing tag shows that the text before it was reasoning;
    until then the text is buffered.
    """

    def __init__(self, *, maybe_opened: bool = False) -> None:
        """Create a splitter; ``maybe_opened``: the prompt may have contained the opening tag."""
        self._state = State.UNDECIDED
        self._buffer = ""
        self._state_without_tag = State.MAYBE_INSIDE if maybe_opened else State.TEXT
        self._closing_tag = THINK_CLOSE
        self._uncertain: list[str] = []  # text buffered in the state ``MAYBE_INSIDE``

    def feed(self, piece: str) -> list[TaggedText]:
        piece, self._buffer = self._buffer + piece, ""
        if self._state is State.UNDECIDED:
            start = piece.lstrip()
            opening_tag = next((tag for tag in TAGS if start.startswith(tag)), None)
            if opening_tag is not None:
                self._state, self._closing_tag = State.INSIDE, TAGS[opening_tag]
                piece = start[len(opening_tag) :]
            elif any(tag.startswith(start) for tag in TAGS):
                self._buffer = piece
                return []
            else:
                self._state = self._state_without_tag
        if self._state is State.MAYBE_INSIDE:
            piece = self._buffer_uncertain(piece)
        parts: list[TaggedText] = []
        if self._state is State.INSIDE:
            piece = self._split_reasoning(piece, parts)
        if self._state is State.TRIMMING:
            piece = piece.lstrip()
            self._state = State.TEXT if piece else State.TRIMMING
        if piece:
            parts.append(("text", piece))
        return parts

    def flush(self) -> list[TaggedText]:
        """Return the buffered text at the end of the response."""
        text, self._buffer = "".join(self._uncertain) + self._buffer, ""
        if self._state is State.MAYBE_INSIDE:  # no closing tag came, so it is text
            self._state = State.TEXT
            self._uncertain.clear()
        if not text:
            return []
        return [("thinking" if self._state is State.INSIDE else "text", text)]

    def _buffer_uncertain(self, piece: str) -> str:
        """Buffer a piece; return all buffered text once it contains the closing tag, else ""."""
        if THINK_CLOSE not in piece:
            cut = len(piece) - _overlap(piece, THINK_CLOSE)
            self._uncertain.append(piece[:cut])
            self._buffer = piece[cut:]
            return ""
        text = "".join(self._uncertain) + piece
        self._uncertain.clear()
        self._state = State.INSIDE
        return text

    def _split_reasoning(self, piece: str, parts: list[TaggedText]) -> str:
        """Move reasoning up to the closing tag into ``parts``; return the text after the tag."""
        reasoning, tag, after = piece.partition(self._closing_tag)
        if tag:
            self._state = State.TRIMMING
        else:
            cut = len(piece) - _overlap(piece, self._closing_tag)
            reasoning, self._buffer = piece[:cut], piece[cut:]
        if reasoning:
            parts.append(("thinking", reasoning))
        return after


def _overlap(text: str, tag: str) -> int:
    """Return how many characters at the end of ``text`` match the start of ``tag``."""
    return next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)


Kind = Literal["", "text", "thinking"]

UNSIGNED_REASONING: Final = Note(
    "content", "dropped", "encrypted reasoning: no keys to sign it with"
)
DROPPED_CITATION: Final = Note("content", "dropped", "a citation without its text")


class TextBlocks:
    """Writes text and reasoning to the message composer and signs each reasoning segment."""

    def __init__(self, composer: MessageComposer) -> None:
        self._refusal = TextBuffer()
        self._lengths: dict[Kind, int] = {"text": 0, "thinking": 0}
        # Number of characters in text and reasoning, to estimate the output tokens.
        self.characters = 0
        self._composer = composer
        self._kind: Kind = ""
        # Composer key of the current segment, with the segment's number.
        self._key = ("text_blocks", 0)
        profile = composer.context.target.profile
        self._tags: ThinkTags | None = None
        if profile.think_tags or profile.think_tags_opened:
            self._tags = ThinkTags(maybe_opened=profile.think_tags_opened)
        self._details: list[dict[str, Any]] = []
        # Fragments that no block shows, because the client asked for no thinking.
        self._hidden_details: list[dict[str, Any]] = []
        self.pending_citations: list[
            tuple[str, str | None, Any, Any]
        ] = []  # citations received before the text that they cite

    @property
    def refusal(self) -> str:
        """The model's refusal so far, which is also sent as text."""
        return self._refusal.getvalue()

    def add_text(self, piece: str) -> None:
        if self._tags is None:
            self._add_plain_text(piece)
        else:
            self._add_tagged(self._tags.feed(piece))

    def expect_tags(self) -> None:
        """Expect reasoning in tags at the start of the content, regardless of the profile."""
        if self._tags is None and not self.characters:
            self._tags = ThinkTags()

    def text_of_kind(self, kind: Kind) -> str:
        """Return all text, or all reasoning, that was sent so far."""
        blocks = [self._composer.find_block(("text_blocks", n)) for n in range(1, self._key[1] + 1)]
        return "".join(b.text for b in blocks if b is not None and b.type == kind)

    def repeats(self, kind: Kind, text: str) -> bool:
        """Return whether ``text`` starts with all text of this kind so far."""
        return len(text) >= self._lengths[kind] and text.startswith(self.text_of_kind(kind))

    def new_part(self, kind: Kind, text: Any) -> str:
        """Return ``text`` after all text of this kind so far; "" if it does not repeat that."""
        is_repeated = isinstance(text, str) and self.repeats(kind, text)
        return text[self._lengths[kind] :] if is_repeated else ""

    def has_kind(self, kind: Kind) -> bool:
        return self._lengths[kind] > 0

    def text_without_tags(self, content: Any) -> str:
        """Return the text of a complete content, without reasoning in tags."""
        if not isinstance(content, str) or self._tags is None:
            return content if isinstance(content, str) else ""
        profile = self._composer.context.target.profile
        tags = ThinkTags(maybe_opened=profile.think_tags_opened)
        return "".join(piece for kind, piece in tags.feed(content) + tags.flush() if kind == "text")

    def add_refusal(self, piece: str) -> None:
        """Add a piece of the model's refusal: it is sent as text and sets the stop reason."""
        self._refusal.append(piece)
        self._add_plain_text(piece)

    def add_reasoning(self, piece: str, details: list[dict[str, Any]]) -> None:
        """Add a piece of reasoning; ``details`` (OpenRouter's fragments) go into the signature."""
        piece = piece or details_text(details)
        self.characters += len(piece)
        context = self._composer.context
        if context.thinking == "hidden":
            self._hidden_details += details
            self._composer.add_thinking(self._key, piece)
            return
        if not (piece or details):
            return
        if not piece and context.target.signing_keys is None:
            self._composer.add_note(UNSIGNED_REASONING)
            return
        if self._kind != "thinking":
            self._start_segment("thinking")
        self._details += details
        self._lengths["thinking"] += len(piece)
        self._composer.add_thinking(self._key, piece)

    def take_hidden_details(self) -> list[dict[str, Any]]:
        """Return the entries that no block shows; the id of the next tool call contains them."""
        details, self._hidden_details = self._hidden_details, []
        return merge_details(details)

    def add_citation(self, url: str, title: str | None, start: Any, end: Any) -> None:
        """Add a citation to the current text, or store it until the cited text has arrived."""
        block = self._composer.find_block(self._key) if self._kind == "text" else None
        if block is None or (isinstance(end, int) and end > block.buffer.tell()):
            self.pending_citations.append((url, title, start, end))
        else:
            self._write_citation(url, title, start, end)

    def _write_citation(self, url: str, title: str | None, start: Any, end: Any) -> None:
        block = self._composer.find_block(self._key)
        cited_text = ""
        if isinstance(start, int) and isinstance(end, int) and start >= 0 and block is not None:
            cited_text = block.buffer.part(start, min(end, start + MAX_CITED_TEXT))
        citation = web_citation(url, title, cited_text)
        self._composer.add_citation(self._key, citation)

    def close_segment(self) -> None:
        """Close the current segment, if there is one."""
        if self._tags is not None:
            self._add_tagged(self._tags.flush())
        match self._kind:
            case "text":
                if self.pending_citations:
                    for citation in self.pending_citations:
                        self._write_citation(*citation)
                    self.pending_citations.clear()
                self._composer.close_block(self._key)
            case "thinking":
                self._composer.close_thinking(self._key, self._signature())
        self._kind, self._details = "", []

    def flush_tags(self) -> None:
        """Send text that was buffered as a possible tag, because the response breaks off here."""
        if self._tags is not None:
            self._add_tagged(self._tags.flush())

    def _add_plain_text(self, piece: str) -> None:
        self.characters += len(piece)
        if self._kind != "text":
            self._start_segment("text")
        self._lengths["text"] += len(piece)
        self._composer.add_text(self._key, piece)

    def _add_tagged(self, parts: list[tuple[Literal["text", "thinking"], str]]) -> None:
        for kind, piece in parts:
            if kind == "text":
                self._add_plain_text(piece)
            else:
                self.add_reasoning(piece, [])

    def _start_segment(self, kind: Kind) -> None:
        """Start a new segment; an open one is closed first."""
        if self._kind:
            # The tag splitter may be calling this method, so close_segment must not flush it.
            tags, self._tags = self._tags, None
            self.close_segment()
            self._tags = tags
        self._kind = kind
        self._key = ("text_blocks", self._key[1] + 1)

    def _signature(self) -> str:
        context = self._composer.context
        target = context.target
        if target.signing_keys is None:
            return ""
        details: Any = merge_details(self._details) or None
        block = self._composer.find_block(self._key)
        if context.thinking == "omitted" and details is None and block is not None:
            # The block shows no reasoning, so its signature contains the text.
            details = {"text": block.text}
        return target.sign("chat", details=details)
