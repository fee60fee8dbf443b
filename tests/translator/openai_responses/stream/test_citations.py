"""Citations are emitted once for their text, or dropped with a note."""

from tests.translator.openai_responses.responses import (
    blocks,
    completed,
    done,
    notes,
    output_message,
    part_done,
    stream,
    text,
)

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


def test_a_cited_text_is_cut_so_that_many_citations_do_not_multiply_it():
    long = CITE | {"start_index": 1, "end_index": 99_000}

    [citations] = cited(text("a" + "b" * 99_000), *[annotation(long)] * 50, completed())

    assert {each["cited_text"] for each in citations} == {"b" * 1_000}


def test_a_citation_quotes_the_text_of_its_range():
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


def test_a_repeated_citation_is_emitted_once():
    final = {"type": "output_text", "text": "Hello", "annotations": [CITE]}

    (citations,) = cited(text("Hello"), annotation(CITE), part_done(final), completed())

    assert len(citations) == 1


def test_a_citation_only_in_the_final_item_is_emitted():
    final = {"type": "output_text", "text": "Hello", "annotations": [CITE, "unusual"]}

    assert len(cited(text("Hello"), part_done(final), completed())[0]) == 1


def test_a_citation_for_a_finished_item_is_dropped():
    assert cited(done(0, **output_message("Hello")), annotation(CITE), completed()) == [None]


def test_a_citation_without_place_and_names_quotes_nothing():
    (citations,) = cited(text("Hello"), annotation({"type": "url_citation"}), completed())

    assert citations[0]["cited_text"] == citations[0]["url"] == ""
    assert citations[0]["title"] is None


def test_other_annotations_are_dropped_with_a_note():
    unusual = {"type": "file_citation", "file_id": "f"}

    assert cited(text("Hello"), annotation(unusual), completed()) == [None]
    assert notes(text("Hello"), annotation(unusual)) == [
        "a file_citation has no form as a citation"
    ]
    machine = stream()
    for event in (text("Hello"), annotation(unusual)):
        machine.feed(event)
    assert [note.fate for note in machine.notes] == ["dropped"]
