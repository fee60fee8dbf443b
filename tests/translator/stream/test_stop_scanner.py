from hypothesis import given
from hypothesis import strategies as st

from tests.for_each import for_each
from translator.message_stream.open_block import StopScanner

LETTERS = st.text(alphabet="ab", max_size=12)
SEQUENCES = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3).map(tuple)


def scanned(pieces: list[str], sequences: tuple[str, ...]) -> tuple[str, str | None]:
    scanner = StopScanner(sequences)
    passed = ""
    for piece in pieces:
        safe, matched = scanner.feed(piece)
        passed += safe
        if matched is not None:
            return passed, matched
    return passed + scanner.flush(), None


def expected(text: str, sequences: tuple[str, ...]) -> tuple[str, str | None]:
    """Scan letter by letter; stop as soon as a sequence is complete."""
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
def test_only_a_possible_sequence_prefix_is_withheld(pieces, sequences):
    scanner = StopScanner(sequences)
    for piece in pieces:
        if scanner.feed(piece)[1] is not None:
            return
    withheld = scanner.flush()

    assert withheld == "" or any(s.startswith(withheld) for s in sequences)
    assert scanner.flush() == ""


@for_each(
    ("text", "sequences", "passed", "matched"),
    [
        ("one STOP two", ("STOP",), "one ", "STOP"),
        ("one stop two", ("STOP",), "one stop two", None),
        ("xabcdex", ("abcde", "bcd"), "xa", "bcd"),
        ("text", (), "text", None),
        ("text", ("",), "text", None),
        ("ST", ("STOP",), "ST", None),
    ],
)
def test_text_before_the_first_stop_sequence_passes(text, sequences, passed, matched):
    assert scanned([text], sequences) == (passed, matched)
