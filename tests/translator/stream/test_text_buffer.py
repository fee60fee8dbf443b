"""The text buffer stores the text of a response up to a bound, in little memory."""

import sys

from tests.translator.message_stream.composing import started
from translator.message_stream.events_to_message import MessageFold
from translator.stream.text_buffer import MAX_CHARACTERS, TextBuffer


def test_pieces_become_one_text():
    buffer = TextBuffer()

    for piece in ("Grüße", "\r\n", "\N{GRINNING FACE}", "\r", "\ud800"):
        buffer.append(piece)

    assert buffer.getvalue() == "Grüße\r\n\N{GRINNING FACE}\r\ud800"
    assert buffer.tell() == 10
    assert not buffer.is_full


def test_an_endless_text_is_stored_up_to_a_bound():
    buffer = TextBuffer()

    for _ in range(20):
        buffer.append("w" * 2**20)

    assert buffer.tell() == MAX_CHARACTERS
    assert buffer.is_full


def test_an_answer_of_many_small_pieces_keeps_few_of_the_pieces():
    """A list of the pieces would take 60 bytes per piece, in two places."""
    (composer, events), fold = started(), MessageFold()
    fold.feed(*events)
    pieces = [f"{number:06d}" for number in range(5_000)]
    references_of_the_list = sys.getrefcount(pieces[0])

    for position in range(5_000):
        composer.writer.events = []
        for event in composer.add_text("text", pieces[position]):
            fold.feed(event)

    held = sum(sys.getrefcount(pieces[each]) > references_of_the_list for each in range(5_000))
    assert fold.characters == 30_000
    assert held < 1_500  # the newest fifth, which the buffers have not joined yet


def test_the_pieces_of_an_answer_are_released_when_they_are_joined():
    """A list of 150 pieces would take 11 KB, three times the size of their characters."""
    pieces = [f"{number:016d}" for number in range(150)]
    references_of_the_list = sys.getrefcount(pieces[0])
    buffer = TextBuffer()

    most_held = 0
    for position in range(150):
        buffer.append(pieces[position])
        held = [sys.getrefcount(pieces[each]) > references_of_the_list for each in range(150)]
        most_held = max(most_held, sum(held))

    assert buffer.getvalue() == "".join(pieces)
    assert most_held < 50


def test_the_first_of_many_blocks_are_stored():
    fold = MessageFold()
    text = {"type": "text", "text": ""}
    for index in range(20):
        fold.feed({"type": "content_block_start", "index": index, "content_block": text})
        delta = {"type": "text_delta", "text": "w" * 2**20}
        fold.feed({"type": "content_block_delta", "index": index, "delta": delta})

    assert fold.is_truncated
    assert fold.characters == MAX_CHARACTERS
