"""Citations: for the text that they stand for, once, or dropped with a note."""

from .answers import blocks, completed, done, notes, part_done, said, stream, text

CITE = {
    "type": "url_citation",
    "url": "https://a.example",
    "title": "A",
    "start_index": 0,
    "end_index": 2,
}


def annotation(value, part=0):
    kind = "response.output_text.annotation.added"
    return {"type": kind, "output_index": 0, "content_index": part, "annotation": value}


def cited(*events):
    return [block.get("citations") for block in blocks(*events)]


def test_a_citation_quotes_the_text_it_stands_for():
    assert cited(text("Hello"), annotation(CITE), completed()) == [
        [
            {
                "type": "web_search_result_location",
                "url": "https://a.example",
                "title": "A",
                "cited_text": "He",
                "encrypted_index": "",
            }
        ]
    ]


def test_a_citation_may_be_nested_as_in_chat():
    inner = {name: value for name, value in CITE.items() if name != "type"}
    nested = {"type": "url_citation", "url_citation": inner}

    assert cited(text("Hello"), annotation(nested), completed()) == cited(
        text("Hello"), annotation(CITE), completed()
    )


def test_a_citation_told_twice_is_one():
    final = {"type": "output_text", "text": "Hello", "annotations": [CITE]}

    (citations,) = cited(text("Hello"), annotation(CITE), part_done(final), completed())

    assert len(citations) == 1


def test_a_citation_told_only_at_the_end_is_not_lost():
    final = {"type": "output_text", "text": "Hello", "annotations": [CITE, "odd"]}

    assert len(cited(text("Hello"), part_done(final), completed())[0]) == 1


def test_a_citation_for_a_finished_item_has_no_block_to_go_to():
    assert cited(done(0, **said("Hello")), annotation(CITE), completed()) == [None]


def test_a_citation_without_place_and_names_quotes_nothing():
    (citations,) = cited(text("Hello"), annotation({"type": "url_citation"}), completed())

    assert citations[0]["cited_text"] == citations[0]["url"] == ""
    assert citations[0]["title"] is None


def test_other_annotations_are_dropped_with_a_note():
    odd = {"type": "file_citation", "file_id": "f"}

    assert cited(text("Hello"), annotation(odd), completed()) == [None]
    assert notes(text("Hello"), annotation(odd)) == ["a file_citation has no form as a citation"]
    machine = stream()
    for event in (text("Hello"), annotation(odd)):
        machine.feed(event)
    assert [note.fate for note in machine.notes] == ["dropped"]
