"""PDFs for tests: with text, without, encrypted, damaged and hostile."""

import io
import zlib

from pypdf import PdfWriter

FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"


def document(*objects: bytes) -> bytes:
    """Build a PDF from its objects; the first one is the catalog."""
    made = bytearray(b"%PDF-1.4\n")
    places = []
    for number, each in enumerate(objects, start=1):
        places.append(len(made))
        made += b"%d 0 obj\n%b\nendobj\n" % (number, each)
    at, size = len(made), len(objects) + 1
    made += b"xref\n0 %d\n0000000000 65535 f \n" % size
    made += b"".join(b"%010d 00000 n \n" % place for place in places)
    return bytes(made) + b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (
        size,
        at,
    )


def stream(data: bytes, entries: bytes = b"") -> bytes:
    return b"<< /Length %d %b >>\nstream\n%b\nendstream" % (len(data), entries, data)


def pages(*texts: str, drawing: bytes | None = None) -> bytes:
    """Build a PDF with a page for each text. ``drawing``: the stream of each page in its place."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * number) for number in range(len(texts)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%b] /Count %d /MediaBox [0 0 612 792]"
        b" /Resources << /Font << /F1 3 0 R >> >> >>" % (kids, len(texts)),
        FONT,
    ]
    for number, text in enumerate(texts):
        shown = stream(b"BT /F1 24 Tf 72 700 Td (%b) Tj ET" % text.encode())
        objects += [
            b"<< /Type /Page /Parent 2 0 R /Contents %d 0 R >>" % (5 + 2 * number),
            drawing or (shown if text else stream(b"")),
        ]
    return document(*objects)


def encrypted() -> bytes:
    writer = PdfWriter(clone_from=io.BytesIO(pages("secret")))
    writer.encrypt("password", algorithm="AES-256")
    made = io.BytesIO()
    writer.write(made)
    return made.getvalue()


def page_tree_loop() -> bytes:
    """Build a PDF whose page tree contains itself, many times on each level."""
    kids = b"2 0 R 3 0 R " * 50
    tree = b"<< /Type /Pages /Kids [%b] /Count 1000000 >>" % kids
    return document(b"<< /Type /Catalog /Pages 2 0 R >>", tree, tree)


def decompression_bomb() -> bytes:
    """Build a page whose stream of 0.3 MB inflates to 256 MB."""
    packed = zlib.compress(bytes(2**28), 9)
    return pages("", drawing=stream(packed, b"/Filter /FlateDecode"))


def nested_bomb() -> bytes:
    """Build a page whose stream is a bomb inside of a bomb."""
    packed = zlib.compress(zlib.compress(bytes(2**28), 9), 9)
    return pages("", drawing=stream(packed, b"/Filter [/FlateDecode /FlateDecode]"))


def many_objects() -> bytes:
    """Build a PDF with a million objects and without a table of their places."""
    objects = b"".join(b"%d 0 obj[]endobj\n" % number for number in range(3, 1_000_000))
    tree = b"1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[]>>endobj\n"
    return (
        b"%PDF-1.4\n"
        + tree
        + objects
        + b"trailer<</Size 1000000/Root 1 0 R>>\nstartxref\n0\n%%EOF\n"
    )


def slow_text() -> bytes:
    """Build a page with millions of drawing operators in a small stream."""
    packed = zlib.compress(b"BT /F1 9 Tf (a) Tj ET\n" * 3_000_000, 9)
    return pages("", drawing=stream(packed, b"/Filter /FlateDecode"))


def deep_nesting() -> bytes:
    return document(b"[" * 200_000)
