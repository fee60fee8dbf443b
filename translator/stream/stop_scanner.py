"""Find stop sequences in text that arrives in pieces, by buffering a possible start of one."""


class StopScanner:
    """Applies ``stop_sequences`` for upstreams that do not, or do not report which matched."""

    def __init__(self, sequences: tuple[str, ...]) -> None:
        self._sequences = tuple(s for s in sequences if s)
        self._buffer = ""

    def feed(self, piece: str) -> tuple[str, str | None]:
        """Add text; return text that can be sent, and the stop sequence found in it, or None.

        The match that ends first is used; of two with the same end, the longer one. So the result
        does not depend on how the text is split into pieces.
        """
        text = self._buffer + piece
        ends = [(start + len(s), start, s) for s in self._sequences if (start := text.find(s)) >= 0]
        if ends:
            _, start, sequence = min(ends)
            self._buffer = ""
            return text[:start], sequence
        safe = min((_sendable_length(text, s) for s in self._sequences), default=len(text))
        self._buffer = text[safe:]
        return text[:safe], None

    def flush(self) -> str:
        """Return the buffered text at the end of the response."""
        text, self._buffer = self._buffer, ""
        return text


def _sendable_length(text: str, sequence: str) -> int:
    """Return the length of ``text`` without an end that may be the start of ``sequence``."""
    first = sequence[0]
    start = text.find(first, max(0, len(text) - len(sequence) + 1))
    while start >= 0:
        if sequence.startswith(text[start:]):
            return start
        start = text.find(first, start + 1)
    return len(text)
