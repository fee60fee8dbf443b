"""Splits ``<think>…</think>`` at the start of an answer's text from the text itself.

Only for servers whose profile says that they write reasoning like that, or that mark it (Gemini):
a user's own text may hold such tags anywhere else. Where a template has written the opening tag
into the prompt, nothing but the closing one tells that all before it was reasoning; until then it
is neither.
"""

import enum
from typing import Final, Literal

CLOSE: Final = "</think>"
TAGS: Final = {
    "<think>": CLOSE,
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",  # Gemini
    "<reasoning>": "</reasoning>",  # gpt-oss at Bedrock
}
"""What opens reasoning, and what ends it."""

Part = tuple[Literal["text", "thinking"], str]


class State(enum.Enum):
    UNDECIDED = "undecided"  # what came so far may still become the opening tag
    OPENED = "opened"  # reasoning, if the closing tag comes; all of it is held back
    INSIDE = "inside"  # reasoning
    TRIMMING = "trimming"  # white space after the closing tag belongs to nobody
    TEXT = "text"


class ThinkTags:
    """Takes text in pieces cut anywhere, returns its parts in order."""

    def __init__(self, *, opened: bool = False) -> None:
        """``opened``: the opening tag may stand in the prompt."""
        self._state = State.UNDECIDED
        self._held = ""
        self._otherwise = State.OPENED if opened else State.TEXT
        self._close = CLOSE
        self._before: list[str] = []  # what is held while ``OPENED``

    def feed(self, piece: str) -> list[Part]:
        piece, self._held = self._held + piece, ""
        if self._state is State.UNDECIDED:
            start = piece.lstrip()
            opening = next((tag for tag in TAGS if start.startswith(tag)), None)
            if opening is not None:
                self._state, self._close = State.INSIDE, TAGS[opening]
                piece = start[len(opening) :]
            elif any(tag.startswith(start) for tag in TAGS):
                self._held = piece
                return []
            else:
                self._state = self._otherwise
        if self._state is State.OPENED:
            piece = self._opened(piece)
        parts: list[Part] = []
        if self._state is State.INSIDE:
            piece = self._reasoning(piece, parts)
        if self._state is State.TRIMMING:
            piece = piece.lstrip()
            self._state = State.TEXT if piece else State.TRIMMING
        if piece:
            parts.append(("text", piece))
        return parts

    def rest(self) -> list[Part]:
        """What is still held back, now that no more text comes."""
        held, self._held = "".join(self._before) + self._held, ""
        if self._state is State.OPENED:  # the closing tag never came: it was the answer
            self._state = State.TEXT
            self._before.clear()
        if not held:
            return []
        return [("thinking" if self._state is State.INSIDE else "text", held)]

    def _opened(self, piece: str) -> str:
        """Hold a piece back; all that was held, once the closing tag is in it."""
        if CLOSE not in piece:
            cut = len(piece) - _overlap(piece, CLOSE)
            self._before.append(piece[:cut])
            self._held = piece[cut:]
            return ""
        held = "".join(self._before) + piece
        self._before.clear()
        self._state = State.INSIDE
        return held

    def _reasoning(self, piece: str, parts: list[Part]) -> str:
        """Take reasoning up to the closing tag into ``parts``; return what stands after the tag."""
        before, tag, after = piece.partition(self._close)
        if tag:
            self._state = State.TRIMMING
        else:
            cut = len(piece) - _overlap(piece, self._close)
            before, self._held = piece[:cut], piece[cut:]
        if before:
            parts.append(("thinking", before))
        return after


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``tag``."""
    return next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)
