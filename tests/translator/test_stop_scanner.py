import pytest
from hypothesis import given
from hypothesis import strategies as st

from translator.stop_scanner import StopScanner

LETTERS = st.text(alphabet="ab", max_size=12)
SEQUENCES = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3).map(tuple)


def scanned(pieces: list[str], sequences: tuple[str, ...]) -> tuple[str, str | None]:
    scanner = StopScanner(sequences)
    said = ""
    for piece in pieces:
        safe, matched = scanner.feed(piece)
        said += safe
        if matched is not None:
            return said, matched
    return said + scanner.rest(), None


def expected(text: str, sequences: tuple[str, ...]) -> tuple[str, str | None]:
    """Read letter by letter, as a model writes: stop as soon as a sequence is complete."""
    for end in range(1, len(text) + 1):
        ending = [s for s in sequences if text[:end].endswith(s)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(pieces=st.lists(LETTERS, max_size=8), sequences=SEQUENCES)
def test_the_cuts_make_no_difference(pieces, sequences):
    assert scanned(pieces, sequences) == expected("".join(pieces), sequences)


@given(pieces=st.lists(LETTERS, max_size=8), sequences=SEQUENCES)
def test_no_more_is_held_back_than_may_become_a_sequence(pieces, sequences):
    scanner = StopScanner(sequences)
    for piece in pieces:
        if scanner.feed(piece)[1] is not None:
            return
    held = scanner.rest()

    assert held == "" or any(s.startswith(held) for s in sequences)
    assert scanner.rest() == ""


@pytest.mark.parametrize(
    ("text", "sequences", "said", "matched"),
    [
        ("one STOP two", ("STOP",), "one ", "STOP"),
        ("one stop two", ("STOP",), "one stop two", None),
        ("xabcdex", ("abcde", "bcd"), "xa", "bcd"),
        ("text", (), "text", None),
        ("text", ("",), "text", None),
        ("ST", ("STOP",), "ST", None),
    ],
)
def test_cases(text, sequences, said, matched):
    assert scanned([text], sequences) == (said, matched)
