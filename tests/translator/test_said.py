"""Text of an answer that goes on and on: what is kept of it, and what is not."""

import tracemalloc

from tests.translator.anthropic.composing import begun
from translator.anthropic.fold import MessageFold
from translator.said import MOST_CHARACTERS, Said


def test_pieces_become_one_text():
    said = Said()

    for piece in ("Grüße", "\r\n", "\N{GRINNING FACE}", "\r", "\ud800"):
        said.append(piece)

    assert said.getvalue() == "Grüße\r\n\N{GRINNING FACE}\r\ud800"
    assert said.tell() == 10
    assert not said.full


def test_a_text_without_end_is_kept_up_to_a_bound():
    said = Said()

    for _ in range(20):
        said.append("w" * 2**20)

    assert said.tell() == MOST_CHARACTERS
    assert said.full


def test_an_answer_of_many_small_pieces_takes_its_characters_and_little_more():
    """A list of the pieces would take 60 bytes for each of them, twice."""
    (composer, events), fold = begun(), MessageFold()
    fold.feed(*events)
    tracemalloc.start()
    try:
        for _ in range(100_000):
            composer.writer.written = []
            for event in composer.text("text", "word"):
                fold.feed(event)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert fold.characters == 400_000
    assert held < 3 * 400_000  # the composer's and the fold's, each with some room to grow


def test_an_answer_of_some_pieces_takes_its_characters_and_little_more():
    pieces = [f"{number:016d}" for number in range(150)]
    said = Said()
    tracemalloc.start()
    try:
        for number in range(150):
            said.append(f"{number:016d}")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert said.getvalue() == "".join(pieces)
    assert held < 2 * 150 * 16  # their list took 11 KB


def test_of_an_answer_of_many_blocks_the_first_are_kept():
    fold = MessageFold()
    text = {"type": "text", "text": ""}
    for index in range(20):
        fold.feed({"type": "content_block_start", "index": index, "content_block": text})
        delta = {"type": "text_delta", "text": "w" * 2**20}
        fold.feed({"type": "content_block_delta", "index": index, "delta": delta})

    assert fold.full
    assert fold.characters == MOST_CHARACTERS
