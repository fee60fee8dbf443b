"""Check the pictures and PDF files of the history before they go to an upstream.

A client keeps a file in its history, so a file that the upstream refuses would end the session:
svg, tiff, an empty file, data that is no picture (anthropics/claude-code#15807), base64 that was
cut or damaged. All OpenAI servers take the same four formats, which Anthropic documents under
"Vision". The first bytes tell the format; no picture is decoded.
"""

import binascii
import string
from typing import Any, Final, NamedTuple

Source = dict[str, Any]

HEAD: Final = 1_400
"""Characters of base64 to decode: PDF readers look for ``%PDF-`` in the first 1,024 bytes."""
PICTURE_HEAD: Final = 32
DATA_URL: Final = "data:"
MAX_LABEL: Final = 128
"""Maximum characters of the label ``data:image/png;base64,`` in front of base64."""
URL_SAFE: Final = str.maketrans("-_", "+/")
DIGITS: Final = string.ascii_letters.encode() + b"0123456789+/"
MAX_PADDING: Final = 2
PDF: Final = "application/pdf"


class File(NamedTuple):
    """A file that can be sent, or the reason why it cannot."""

    media_type: str = ""
    data: str = ""
    """Plain base64, without line breaks."""
    repair: str = ""
    """What was wrong with the client's base64 or label; "" if nothing was."""
    fault: str = ""
    """Why the file is not sent; "" for a file that can be sent."""


def embedded_source(source: Source) -> Source:
    """Return the ``base64`` source of a picture whose URL contains its data; others unchanged."""
    url = source.get("url")
    if source.get("type") != "url" or not (isinstance(url, str) and url.startswith(DATA_URL)):
        return source
    media_type = url[len(DATA_URL) : MAX_LABEL].partition(";")[0]
    return {"type": "base64", "media_type": media_type, "data": url}


def read_picture(source: Source) -> File:
    """Return a ``base64`` picture with its true media type."""
    data, repair = _plain_base64(source["data"])
    head = _decode(data[:PICTURE_HEAD]) if _is_base64(data) else b""
    media_type = _picture_type(head)
    if not media_type:
        return File(fault=_fault(source, head, "picture", "jpeg, png, gif or webp"))
    if media_type != source["media_type"]:
        repair = repair or f"the picture is {media_type}: sent with this media type"
    return File(media_type, data, repair)


def read_pdf(source: Source) -> File:
    """Return a ``base64`` document, which Anthropic defines as a PDF."""
    data, repair = _plain_base64(source["data"])
    head = _decode(data[:HEAD]) if _is_base64(data) else b""
    if b"%PDF-" not in head[:1024]:
        return File(fault=_fault(source, head, "document", "PDF"))
    if source["media_type"] != PDF:
        repair = repair or f"the document is {PDF}: sent with this media type"
    return File(PDF, data, repair)


def _fault(source: Source, head: bytes, kind: str, formats: str) -> str:
    if not source["data"].strip():
        return f"the {kind} is empty"
    if not head:
        return f"the {kind} is not valid base64"
    return f"the {kind} is not {formats}"


def _picture_type(head: bytes) -> str:
    for start, media_type in PICTURES:
        if head.startswith(start):
            return media_type
    return "image/webp" if head[:4] == b"RIFF" and head[8:12] == b"WEBP" else ""


def _plain_base64(data: str) -> tuple[str, str]:
    """Return base64 in its standard form, and what had to be repaired.

    Clients send whole data URLs, lines of 76 characters (``base64.encodebytes``), the URL-safe
    alphabet, and data without padding.
    """
    plain = data
    if plain.startswith(DATA_URL):
        label, _, rest = plain[:MAX_LABEL].partition(",")
        plain = plain[len(label) + 1 :] if rest else plain
    if any(space in plain for space in "\n\r \t"):
        plain = "".join(plain.split())
    if "-" in plain or "_" in plain:
        plain = plain.translate(URL_SAFE)
    if len(plain) % 4 in (2, 3) and not plain.endswith("="):
        plain += "=" * (-len(plain) % 4)
    return plain, "" if plain == data else "the base64 was not in its standard form"


def _is_base64(data: str) -> bool:
    """Return whether all of the data is base64, with its padding: a part may be damaged or cut."""
    digits = data.rstrip("=")
    if not digits.isascii() or len(data) % 4 or len(data) - len(digits) > MAX_PADDING:
        return False
    return not digits.encode().translate(None, DIGITS)


def _decode(head: str) -> bytes:
    """Decode the start of base64; b"" if it is not valid."""
    try:
        return binascii.a2b_base64(head[: len(head) // 4 * 4], strict_mode=True)
    except ValueError:
        return b""


PICTURES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
"""First bytes of a format -> its media type; WebP has its name after the length."""

MAX_FILE_NAME: Final = 100


def file_name(title: Any) -> str:
    """Return a safe file name that ends in ``.pdf``: OpenAI tells the type of a file by its name.

    Titles are free text: they may be long, or have path separators and control characters.
    """
    name = "".join(c if c.isalnum() or c in " ._-()" else "_" for c in str(title or "")[:1000])
    name = name.strip(" ._")
    name = name[:-4].rstrip(" .") if name.lower().endswith(".pdf") else name
    return f"{name[:MAX_FILE_NAME].strip(' .') or 'document'}.pdf"
