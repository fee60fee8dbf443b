"""Convert blocks of user turns and tool results to parts of an upstream message.

Both OpenAI APIs accept text, images and files as parts. They share this conversion; a subclass for
each API defines the JSON of the parts. Source: docs/mapping.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from translator.errors import BadRequest

from .builder import RequestBuilder
from .history_shapes import NO_IMAGE
from .text_fallbacks import document_text, search_result_text

Block = dict[str, Any]
Part = TypeVar("Part")

BlockConverter = Callable[[Any, Block, str, RequestBuilder], list[Any]]
"""A method of ``PartBuilder``: takes a block, its path for notes and errors, and the request
builder; returns parts."""


class PartBuilder(ABC, Generic[Part]):
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
        source = block["source"]
        match source.get("type"):
            case "base64":
                part = self.image_part(_data_url(source))
            case "url":
                part = self.image_part(source["url"])
            case kind:
                raise _foreign_file_error(path, kind)
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
                return self._document_text(block, path, builder)
            case kind:
                raise _foreign_file_error(path, kind)

    def _file(self, block: Block, source: Block, path: str, builder: RequestBuilder) -> Part:
        url_part = self.file_url_part(source["url"]) if source["type"] == "url" else None
        if source["type"] == "url" and url_part is None:
            raise BadRequest(f"{path}.source.type", "this upstream does not fetch documents by URL")
        if not builder.profile.files:
            raise BadRequest(f"{path}.source", "this upstream does not accept PDF documents")
        for name in ("context", "title") if url_part is not None else ("context",):
            if block.get(name):
                builder.add_note(
                    f"{path}.{name}", "dropped", "the upstream's files have no such field"
                )
        return url_part or self.file_part(block.get("title") or "document.pdf", _data_url(source))

    def _document_text(self, block: Block, path: str, builder: RequestBuilder) -> list[Part]:
        content = block["source"].get("content")
        if block["source"]["type"] == "text" or isinstance(content, str):
            return [self.text_part(document_text(block))]
        heading_lines = [block[name] for name in ("title", "context") if block.get(name)]
        parts = [self.text_part("\n".join(heading_lines))] if heading_lines else []
        return parts + self.convert_content(content, f"{path}.source", builder)

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


def _data_url(source: Block) -> str:
    return f"data:{source['media_type']};base64,{source['data']}"


def _drop_citations(block: Block, path: str, builder: RequestBuilder, kind: str) -> None:
    if (block.get("citations") or {}).get("enabled"):
        builder.add_note(f"{path}.citations", "dropped", f"the upstream cannot cite {kind}")


def _foreign_file_error(path: str, kind: object) -> BadRequest:
    return BadRequest(f"{path}.source.type", f"{kind!r}: the file is stored at another provider")
