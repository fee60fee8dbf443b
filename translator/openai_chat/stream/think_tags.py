"""Separate ``<think>…</think>`` at the start of a response from its text.

This is done only for servers whose profile requires it or that announce such reasoning (Gemini),
because a normal text may contain such tags. If the server's chat template puts the opening tag into
the prompt, only the closing tag shows that the text before it was reasoning; until then the text is
buffered.
"""

import enum
from typing import Final, Literal

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
    """Takes text in pieces of any length and returns its parts, each as text or reasoning."""

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
