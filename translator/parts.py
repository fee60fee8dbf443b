"""What a block of a user's turn or of a tool's result says, as parts of an upstream's message.

Both of OpenAI's APIs take text, pictures and files as parts. What becomes of a block is decided
here; how a part is spelt is the dialect's. Source: mapping.md 1.3.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar

from .draft import Draft
from .errors import BadRequest
from .render import document_text, search_result_text

Block = dict[str, Any]
Part = TypeVar("Part")

Builder = Callable[[Any, Block, str, Draft], list[Any]]
"""A method of ``Parts``: the parts of a block, and the path that a note or an error names."""

NO_IMAGE: Final = "[image omitted: this model takes no images]"


class Parts(ABC, Generic[Part]):
    """A dialect's parts; it says how each is spelt."""

    @abstractmethod
    def text(self, text: str) -> Part:
        """A text that is not empty."""

    @abstractmethod
    def image(self, url: str) -> Part:
        """``url``: http, https or data."""

    @abstractmethod
    def file(self, name: str, data_url: str) -> Part:
        """A document that comes along."""

    @abstractmethod
    def file_at(self, url: str) -> Part | None:
        """A document to be fetched; None: the upstream fetches none."""

    @abstractmethod
    def mark(self, part: Part, cache_control: Block) -> None:
        """End a cached prefix at this part, for servers that want to be told."""

    def of_content(self, content: str | list[Block] | None, path: str, draft: Draft) -> list[Part]:
        """The parts of a whole content, without empty ones."""
        if isinstance(content, str):
            return [self.text(content)] if content and not content.isspace() else []
        parts: list[Part] = []
        for number, block in enumerate(content or ()):
            parts += self.of_block(block, f"{path}.content.{number}", draft)
        return parts

    def of_block(self, block: Block, path: str, draft: Draft) -> list[Part]:
        """The parts of one block; BadRequest for a type that has no form here."""
        kind = block["type"]
        if kind not in self.BLOCKS:
            raise BadRequest(f"{path}.type", f"{kind!r} is not supported by this upstream")
        parts = self.BLOCKS[kind](self, block, path, draft)
        if parts and draft.profile.cache_breakpoints and block.get("cache_control"):
            self.mark(parts[-1], block["cache_control"])
        return parts

    def _text(self, block: Block, path: str, draft: Draft) -> list[Part]:
        text = block["text"]
        return [self.text(text)] if text and not text.isspace() else []

    def _image(self, block: Block, path: str, draft: Draft) -> list[Part]:
        if not draft.profile.images:
            draft.note(path, "dropped", "this upstream takes no images")
            return [self.text(NO_IMAGE)]
        source = block["source"]
        match source.get("type"):
            case "base64":
                part = self.image(_data_url(source))
            case "url":
                part = self.image(source["url"])
            case kind:
                raise _elsewhere(path, kind)
        if block.get("transformations"):
            draft.note(f"{path}.transformations", "dropped", "the upstream scales images itself")
        return [part]

    def _document(self, block: Block, path: str, draft: Draft) -> list[Part]:
        source = block["source"]
        _drop_citations(block, path, draft, "documents")
        match source.get("type"):
            case "base64" | "url":
                return [self._file(block, source, path, draft)]
            case "text" | "content":
                draft.note(path, "emulated", "a document is told as text")
                return self._document_text(block, path, draft)
            case kind:
                raise _elsewhere(path, kind)

    def _file(self, block: Block, source: Block, path: str, draft: Draft) -> Part:
        fetched = self.file_at(source["url"]) if source["type"] == "url" else None
        if source["type"] == "url" and fetched is None:
            raise BadRequest(f"{path}.source.type", "this upstream fetches no documents by URL")
        if not draft.profile.files:
            raise BadRequest(f"{path}.source", "this upstream takes no PDF documents")
        for name in ("context", "title") if fetched is not None else ("context",):
            if block.get(name):
                draft.note(f"{path}.{name}", "dropped", "the upstream's files have no such field")
        return fetched or self.file(block.get("title") or "document.pdf", _data_url(source))

    def _document_text(self, block: Block, path: str, draft: Draft) -> list[Part]:
        content = block["source"].get("content")
        if block["source"]["type"] == "text" or isinstance(content, str):
            return [self.text(document_text(block))]
        heading = [block[name] for name in ("title", "context") if block.get(name)]
        parts = [self.text("\n".join(heading))] if heading else []
        return parts + self.of_content(content, f"{path}.source", draft)

    def _search_result(self, block: Block, path: str, draft: Draft) -> list[Part]:
        _drop_citations(block, path, draft, "search results")
        draft.note(path, "emulated", "a search result is told as text")
        return [self.text(search_result_text(block))]

    def _tool_reference(self, block: Block, path: str, draft: Draft) -> list[Part]:
        draft.note(path, "emulated", "a loaded tool is told as text")
        return [self.text(f"[tool loaded: {block['tool_name']}]")]

    # At the foot of the class, where the functions above exist as plain names.
    BLOCKS: ClassVar[Mapping[str, Builder]] = {
        "document": _document,
        "image": _image,
        "search_result": _search_result,
        "text": _text,
        "tool_reference": _tool_reference,
    }


def _data_url(source: Block) -> str:
    return f"data:{source['media_type']};base64,{source['data']}"


def _drop_citations(block: Block, path: str, draft: Draft, what: str) -> None:
    if (block.get("citations") or {}).get("enabled"):
        draft.note(f"{path}.citations", "dropped", f"the upstream cannot cite {what}")


def _elsewhere(path: str, kind: object) -> BadRequest:
    return BadRequest(f"{path}.source.type", f"{kind!r}: files live at another provider")
