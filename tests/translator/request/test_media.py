"""Pictures and PDF files are recognised by their first bytes; what is neither becomes a text."""

import base64

from tests.fakes.anthropic_requests import assistant, call, make_request, result, text, user
from tests.for_each import for_each
from translator import openai_chat, openai_responses
from translator.capabilities import PROFILES
from translator.dialect import TranslationTarget
from translator.request.content_parts import File, file_name, read_pdf, read_picture

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
JPEG = b"\xff\xd8\xff\xe0" + bytes(40)
GIF = b"GIF89a" + bytes(40)
WEBP = b"RIFF\x10\x00\x00\x00WEBPVP8 " + bytes(40)
TIFF = b"II*\x00" + bytes(40)
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"/>'
PDF = b"%PDF-1.7\n" + bytes(40)

DIALECTS = for_each("dialect", [openai_chat.DIALECT, openai_responses.DIALECT])


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def source(data: str, media_type: str = "image/png") -> dict[str, str]:
    return {"type": "base64", "media_type": media_type, "data": data}


@for_each(
    ("data", "media_type"),
    [(PNG, "image/png"), (JPEG, "image/jpeg"), (GIF, "image/gif"), (WEBP, "image/webp")],
)
def test_the_first_bytes_tell_the_format(data, media_type):
    assert read_picture(source(encoded(data), media_type)) == File(media_type, encoded(data))
    wrong = read_picture(source(encoded(data), "image/jpg"))
    assert (wrong.media_type, wrong.repair) == (
        media_type,
        f"the picture is {media_type}: sent with this media type",
    )


@for_each(
    ("data", "fault"),
    [
        ("", "the picture is empty"),
        (" \n", "the picture is empty"),
        ("data:image/png;base64,", "the picture is not valid base64"),
        ("!!!!!!!!", "the picture is not valid base64"),
        ("<svg/>", "the picture is not valid base64"),
        ("ïVBORw0KGgo", "the picture is not valid base64"),
        ("A", "the picture is not valid base64"),
        (encoded(SVG), "the picture is not jpeg, png, gif or webp"),
        (encoded(TIFF), "the picture is not jpeg, png, gif or webp"),
        (encoded(PDF), "the picture is not jpeg, png, gif or webp"),
        (encoded(b"RIFF\x10\x00\x00\x00WAVEfmt "), "the picture is not jpeg, png, gif or webp"),
        (encoded(b"an error page"), "the picture is not jpeg, png, gif or webp"),
    ],
)
def test_what_is_no_picture_has_a_fault(data, fault):
    assert read_picture(source(data)) == File(fault=fault)


@for_each(
    "data",
    [
        f"data:image/png;base64,{encoded(PNG)}",
        base64.encodebytes(PNG).decode(),
        encoded(PNG + b"x").rstrip("="),
        base64.urlsafe_b64encode(PNG + b"\xfb\xff\xfe").decode(),
    ],
)
def test_other_forms_of_base64_are_repaired(data):
    picture = read_picture(source(data))

    assert base64.b64decode(picture.data, validate=True).startswith(PNG)
    assert picture.repair == "the base64 was not in its standard form"


@for_each("read", [read_picture, read_pdf])
@for_each("end", ["*", "AA=A", "A", "====", "AAA\N{BULLET}", "AA\\nA"])
def test_base64_that_is_damaged_behind_its_start_is_found(read, end):
    start = PNG if read is read_picture else PDF
    data = encoded(start + bytes(2_000 - len(start) + 1))

    assert read(source(data[:-4] + "AAAA")).fault == ""
    assert read(source(data[:-4] + end + "AAAA")).fault.endswith("is not valid base64")


def test_a_pdf_may_start_after_other_bytes():
    assert read_pdf(source(encoded(PDF), "application/pdf")).fault == ""
    assert read_pdf(source(encoded(bytes(900) + PDF), "application/pdf")).fault == ""
    assert read_pdf(source(encoded(PDF), "text/plain")).repair
    assert read_pdf(source(encoded(PNG), "application/pdf")).fault == "the document is not PDF"
    assert read_pdf(source("", "application/pdf")).fault == "the document is empty"


@for_each(
    ("title", "name"),
    [
        ("Report", "Report.pdf"),
        ("Report.PDF", "Report.pdf"),
        ("a/b\\c\n.pdf", "a_b_c_.pdf"),
        ("../../etc/passwd", "etc_passwd.pdf"),
        ("Bericht für Öl", "Bericht für Öl.pdf"),
        ("", "document.pdf"),
        (None, "document.pdf"),
        (" . ", "document.pdf"),
        (".pdf", "pdf.pdf"),
        ("x" * 5000, "x" * 100 + ".pdf"),
    ],
)
def test_a_file_name_is_safe_and_ends_in_pdf(title, name):
    assert file_name(title) == name


@DIALECTS
def test_a_url_that_contains_its_picture_is_checked_too(dialect):
    urls = [
        f"data:image/svg+xml;base64,{encoded(SVG)}", "data:image/svg+xml,<svg/>",
        f"data:image/png;base64,{encoded(PNG)}", "https://example.org/a.svg",
    ]  # fmt: skip
    blocks = [{"type": "image", "source": {"type": "url", "url": url}} for url in urls]

    made = dialect.build_request(make_request(user(*blocks)), TranslationTarget())

    assert [note.path for note in made.notes if note.fate == "dropped"] == [
        "messages.0.content.0", "messages.0.content.1",
    ]  # fmt: skip
    assert all(url in str(made.body) for url in urls[2:])


def picture(data: bytes) -> dict[str, object]:
    return {"type": "image", "source": source(encoded(data), "image/svg+xml")}


@DIALECTS
@for_each("profile", ["openai", "vllm", "generic", "gemini"])
def test_a_text_takes_the_place_of_a_picture_at_every_depth(profile, dialect):
    inside = {"type": "document", "source": {"type": "content", "content": [picture(SVG)]}}
    request = make_request(
        user(text("Draw."), picture(TIFF)),
        assistant(call()),
        user(result(text("Done."), picture(SVG), inside), picture(GIF)),
    )

    made = dialect.build_request(request, TranslationTarget(profile=PROFILES[profile]))

    notes = {note.path: note.fate for note in made.notes if note.fate in ("dropped", "repaired")}
    assert notes == {
        "messages.0.content.1": "dropped",
        "messages.2.content.0.content.1": "dropped",
        "messages.2.content.0.content.2.source.content.0": "dropped",
        "messages.2.content.1.source": "repaired",
    }
    body = str(made.body)
    assert body.count("[file omitted: the picture is not jpeg, png, gif or webp]") == 3
    assert (body.count(";base64,"), body.count("data:image/gif;base64,R0lGODlh")) == (1, 1)
