"""Finds stop sequences in text that arrives in pieces, by holding back what may become one."""


class StopScanner:
    """Emulates ``stop_sequences`` for upstreams that have none, or do not say which one matched."""

    def __init__(self, sequences: tuple[str, ...]) -> None:
        self._sequences = tuple(s for s in sequences if s)
        self._held = ""

    def feed(self, piece: str) -> tuple[str, str | None]:
        """Take text; return what is safe to send, and the sequence that matched.

        The match that ends first wins, of two with one end the longer: a model that knew the
        sequences would have stopped there, and the pieces' cuts make no difference.
        """
        text = self._held + piece
        ends = [(start + len(s), start, s) for s in self._sequences if (start := text.find(s)) >= 0]
        if ends:
            _, start, sequence = min(ends)
            self._held = ""
            return text[:start], sequence
        safe = min((_safe_length(text, s) for s in self._sequences), default=len(text))
        self._held = text[safe:]
        return text[:safe], None

    def rest(self) -> str:
        """What is still held back, now that no more text comes."""
        held, self._held = self._held, ""
        return held


def _safe_length(text: str, sequence: str) -> int:
    """How much of ``text`` comes before the first tail that ``sequence`` could begin with."""
    first = sequence[0]
    start = text.find(first, max(0, len(text) - len(sequence) + 1))
    while start >= 0:
        if sequence.startswith(text[start:]):
            return start
        start = text.find(first, start + 1)
    return len(text)
