"""Convert blocks of user turns and tool results to parts of an upstream message.

Both OpenAI APIs accept text, images and files as parts. They share this conversion; a subclass for
each API defines the JSON of the parts. Source: docs/mapping.md.
"""

import binascii
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from translator.errors import BadRequest
from translator.upstream_errors import anthropic_path

from .builder import RequestBuilder
from .history_shapes import NO_IMAGE
from .text_fallbacks import document_text, search_result_text

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
    """A picture or PDF that can be sent, or the reason why it cannot.

    A client keeps a file in its history, so a file that the upstream refuses would end the session:
    svg, tiff, an empty file, data that is no picture (anthropics/claude-code#15807), base64 that
    was cut or damaged. All OpenAI servers take the same four formats, which Anthropic documents
    under "Vision". The first bytes tell the format; no picture is decoded.
    """

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


Block = dict[str, Any]
Part = dict[str, Any]

NO_PDF: Final = "this upstream does not support PDF input"
NO_DOCUMENT_URL: Final = "this upstream does not fetch documents by URL"

BlockConverter = Callable[[Any, Block, str, RequestBuilder], list[Any]]
"""A method of ``PartBuilder``: takes a block, its path for notes and errors, and the request
builder; returns parts."""


class PartBuilder(ABC):
    """Converts content blocks to parts; a subclass for each API defines the JSON of a part."""

    @abstractmethod
    def text_part(self, text: str) -> Part:
        """Return a text part; ``text`` is never empty."""

    @abstractmethod
    def image_part(self, url: str) -> Part:
        """Return an image part; ``url`` is an http, https or data URL."""

    @abstractmethod
    def file_part(self, name: str, data_url: str) -> Part:
        """Return a part that contains a document as a data URL."""

    @abstractmethod
    def file_url_part(self, url: str) -> Part | None:
        """Return a part with a document's URL; None if the upstream cannot download documents."""

    @abstractmethod
    def set_cache_breakpoint(self, part: Part, cache_control: Block) -> None:
        """End the cached prefix at this part, for servers with explicit cache breakpoints."""

    def convert_content(
        self, content: str | list[Block] | None, path: str, builder: RequestBuilder
    ) -> list[Part]:
        """Convert the content of a message or tool result, without empty texts."""
        if isinstance(content, str):
            return [self.text_part(content)] if content and not content.isspace() else []
        parts: list[Part] = []
        for number, block in enumerate(content or ()):
            parts += self.convert_block(block, f"{path}.content.{number}", builder)
        return parts

    def convert_block(self, block: Block, path: str, builder: RequestBuilder) -> list[Part]:
        """Convert one block; raise BadRequest for a type that the upstream does not support."""
        kind = block["type"]
        if kind not in self.BLOCKS:
            raise BadRequest(f"{path}.type", f"{kind!r} is not supported by this upstream")
        parts = self.BLOCKS[kind](self, block, path, builder)
        for part in parts:
            if not builder.place_of(part):  # a document's own pictures have their place already
                builder.place(part, f"{path}.{kind}")
        if parts and builder.profile.cache_breakpoints and block.get("cache_control"):
            self.set_cache_breakpoint(parts[-1], block["cache_control"])
        return parts

    def _text(self, block: Block, path: str, builder: RequestBuilder) -> list[Part]:
        text = block["text"]
        return [self.text_part(text)] if text and not text.isspace() else []

    def _image(self, block: Block, path: str, builder: RequestBuilder) -> list[Part]:
        if not builder.profile.images:
            builder.add_note(path, "dropped", "this upstream does not accept images")
            return [self.text_part(NO_IMAGE)]
        source = embedded_source(block["source"])
        match source.get("type"):
            case "base64":
                file = read_picture(source)
                if file.fault:
                    return [self._placeholder(file.fault, path, builder)]
                part = self.image_part(_data_url(file, path, builder))
            case "url":
                part = self.image_part(source["url"])
            case kind:
                raise _foreign_file_error(path, "image", kind)
        if block.get("transformations"):
            builder.add_note(
                f"{path}.transformations", "dropped", "the upstream scales images itself"
            )
        return [part]

    def _document(self, block: Block, path: str, builder: RequestBuilder) -> list[Part]:
        source = block["source"]
        _drop_citations(block, path, builder, "documents")
        match source.get("type"):
            case "base64" | "url":
                return [self._file(block, source, path, builder)]
            case "text" | "content":
                builder.add_note(path, "emulated", "a document is sent as text")
                content = block["source"].get("content")
                if block["source"]["type"] == "text" or isinstance(content, str):
                    return [self.text_part(document_text(block))]
                heading_lines = [block[name] for name in ("title", "context") if block.get(name)]
                parts = [self.text_part("\n".join(heading_lines))] if heading_lines else []
                return parts + self.convert_content(content, f"{path}.source", builder)
            case kind:
                raise _foreign_file_error(path, "document", kind)

    def _file(self, block: Block, source: Block, path: str, builder: RequestBuilder) -> Part:
        """Return a part with the file, or a text in its place if the upstream cannot have it."""
        url_part = self.file_url_part(source["url"]) if source["type"] == "url" else None
        if source["type"] == "url" and url_part is None:
            return self._placeholder(NO_DOCUMENT_URL, path, builder, name=source["url"])
        if not builder.profile.files:
            return self._placeholder(NO_PDF, path, builder, name=block.get("title") or "")
        if url_part is not None:
            self._note_lost_fields(block, ("context", "title"), path, builder)
            return url_part
        file = read_pdf(source)
        if file.fault:
            return self._placeholder(file.fault, path, builder, name=block.get("title") or "")
        self._note_lost_fields(block, ("context",), path, builder)
        return self.file_part(file_name(block.get("title")), _data_url(file, path, builder))

    def _note_lost_fields(
        self, block: Block, names: tuple[str, ...], path: str, builder: RequestBuilder
    ) -> None:
        reason = "the upstream's files have no such field"
        for name in names:
            if block.get(name):
                builder.add_note(f"{path}.{name}", "dropped", reason)

    def _placeholder(
        self, fault: str, path: str, builder: RequestBuilder, *, name: str = ""
    ) -> Part:
        """Return a text for a file that cannot be sent: an error would end the session.

        ``name`` is the client's text, so it is not in the note.
        """
        builder.add_note(path, "dropped", fault)
        return self.text_part(
            f"[file omitted: {fault}: {name}]" if name else f"[file omitted: {fault}]"
        )

    def _search_result(self, block: Block, path: str, builder: RequestBuilder) -> list[Part]:
        _drop_citations(block, path, builder, "search results")
        builder.add_note(path, "emulated", "a search result is sent as text")
        return [self.text_part(search_result_text(block))]

    def _tool_reference(self, block: Block, path: str, builder: RequestBuilder) -> list[Part]:
        builder.add_note(path, "emulated", "a loaded tool is sent as text")
        return [self.text_part(f"[tool loaded: {block['tool_name']}]")]

    # At the end of the class, where the functions above can be referenced by name.
    BLOCKS: ClassVar[Mapping[str, BlockConverter]] = {
        "document": _document,
        "image": _image,
        "search_result": _search_result,
        "text": _text,
        "tool_reference": _tool_reference,
    }


def _data_url(file: File, path: str, builder: RequestBuilder) -> str:
    if file.repair:
        builder.add_note(f"{path}.source", "repaired", file.repair)
    return f"data:{file.media_type};base64,{file.data}"


def _drop_citations(block: Block, path: str, builder: RequestBuilder, kind: str) -> None:
    if (block.get("citations") or {}).get("enabled"):
        builder.add_note(f"{path}.citations", "dropped", f"the upstream cannot cite {kind}")


def _foreign_file_error(path: str, block_type: str, kind: object) -> BadRequest:
    """Return the error for a stored file, with the path by which Claude Code drops the file."""
    place = anthropic_path(f"{path}.{block_type}.source.type")
    return BadRequest(place, f"{kind!r}: the file is stored at another provider")
