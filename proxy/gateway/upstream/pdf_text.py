"""Read the text of a PDF with pypdf.

A PDF is hostile (page trees with loops, streams that inflate a thousandfold, a million objects), so
only a child of ``proxy.limited_work`` imports this module; ``documents.py`` starts it.
"""

import base64
import io
import json
from typing import Final

from pypdf import PdfReader

MAX_PAGES: Final = 100
MAX_CHARACTERS: Final = 300_000
"""The most that is read: 100 dense pages."""


class NoText(Exception):
    """A PDF has no text that can be read; the message says why."""


def read_pdf(data: bytes) -> bytes:
    """Return JSON with the ``text`` of a PDF in base64, or with the ``fault`` why there is none."""
    try:
        answer = {"text": text_of(data)}
    except NoText as fault:
        answer = {"fault": str(fault)}
    return json.dumps(answer).encode()


def text_of(data: bytes) -> str:
    """Return the text of a PDF in base64, with a line before each page. Raises NoText."""
    try:
        reader = PdfReader(io.BytesIO(base64.b64decode(data)))
        is_readable = not reader.is_encrypted or reader.decrypt("")
        pages, left = _read_pages(reader) if is_readable else ([], 0)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file makes the library raise nearly any exception
        raise NoText("it is damaged") from error
    if not is_readable:
        raise NoText("it is encrypted")
    if left == MAX_CHARACTERS:
        raise NoText("it has no text")
    # A font may map to halves of surrogate pairs, which no JSON can contain, and to NUL.
    text = "\n\n".join(pages).replace("\0", "")
    return text.encode("utf-8", "replace").decode("utf-8")


def _read_pages(reader: PdfReader) -> tuple[list[str], int]:
    """Return the texts of the pages, and how many more characters they may have."""
    total, left = len(reader.pages), MAX_CHARACTERS
    pages = []
    for number in range(min(total, MAX_PAGES)):
        page = reader.pages[number].extract_text().strip()[:left]
        pages.append(f"[page {number + 1} of {total}]\n{page}")
        left -= len(page)
        if not left:
            break
    if len(pages) < total or not left:
        pages.append("[the document goes on, but is too long]")
    return pages, left
