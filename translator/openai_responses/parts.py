"""Content blocks of user turns, system turns and tool results -> input parts (mapping.md 1.3)."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from translator.draft import Draft
from translator.errors import BadRequest
from translator.render import document_text, search_result_text

from .types import CacheBreakpoint, InputPart, InputText

Block = dict[str, Any]
Builder = Callable[[Block, str, Draft], list[InputPart]]


def input_parts(content: str | list[Block] | None, path: str, draft: Draft) -> list[InputPart]:
    """The parts of a whole content, without empty ones."""
    if isinstance(content, str):
        return [text_part(content)] if content and not content.isspace() else []
    parts: list[InputPart] = []
    for number, block in enumerate(content or ()):
        parts += block_parts(block, f"{path}.content.{number}", draft)
    return parts


def block_parts(block: Block, path: str, draft: Draft) -> list[InputPart]:
    """The parts of one block; BadRequest for a type that has no form here."""
    kind = block["type"]
    if kind not in BLOCKS:
        raise BadRequest(f"{path}.type", f"{kind!r} is not supported by this upstream")
    parts = BLOCKS[kind](block, path, draft)
    if parts and draft.profile.cache_breakpoints and block.get("cache_control"):
        mark_breakpoint(parts[-1], block["cache_control"])
    return parts


def text_part(text: str) -> InputText:
    return {"type": "input_text", "text": text}


def mark_breakpoint(part: InputPart, cache_control: Block) -> None:
    """End a cached prefix at this part; servers without the capability do so without being told."""
    mark: CacheBreakpoint = {"mode": "explicit"}
    if cache_control.get("ttl") == "1h":
        mark["ttl"] = "12h"
    part["prompt_cache_breakpoint"] = mark


def _text(block: Block, path: str, draft: Draft) -> list[InputPart]:
    text = block["text"]
    return [{"type": "input_text", "text": text}] if text and not text.isspace() else []


def _image(block: Block, path: str, draft: Draft) -> list[InputPart]:
    source = block["source"]
    if not draft.profile.images:
        draft.note(path, "dropped", "this upstream takes no images")
        return [text_part("[image omitted: this model takes no images]")]
    match source.get("type"):
        case "base64":
            url = f"data:{source['media_type']};base64,{source['data']}"
        case "url":
            url = source["url"]
        case kind:
            raise BadRequest(f"{path}.source.type", f"{kind!r}: files live at another provider")
    if block.get("transformations"):
        draft.note(f"{path}.transformations", "dropped", "the upstream scales images itself")
    return [{"type": "input_image", "detail": "auto", "image_url": url}]


def _document(block: Block, path: str, draft: Draft) -> list[InputPart]:
    source = block["source"]
    if (block.get("citations") or {}).get("enabled"):
        draft.note(f"{path}.citations", "dropped", "the upstream cannot cite documents")
    match source.get("type"):
        case "base64" | "url" if not draft.profile.files:
            raise BadRequest(f"{path}.source", "this upstream takes no PDF documents")
        case "base64":
            data = f"data:{source['media_type']};base64,{source['data']}"
            name = block.get("title") or "document.pdf"
            return [{"type": "input_file", "filename": name, "file_data": data}]
        case "url":
            return [{"type": "input_file", "file_url": source["url"]}]
        case "text":
            draft.note(path, "emulated", "a document is told as text")
            return [text_part(document_text(block))]
        case "content":
            draft.note(path, "emulated", "a document is told as text")
            return _document_content(block, source["content"], path, draft)
        case kind:
            raise BadRequest(f"{path}.source.type", f"{kind!r}: files live at another provider")


def _document_content(block: Block, content: Any, path: str, draft: Draft) -> list[InputPart]:
    if isinstance(content, str):
        return [text_part(document_text(block))]
    heading = [block[name] for name in ("title", "context") if block.get(name)]
    parts: list[InputPart] = [text_part("\n".join(heading))] if heading else []
    return parts + input_parts(content, f"{path}.source", draft)


def _search_result(block: Block, path: str, draft: Draft) -> list[InputPart]:
    if (block.get("citations") or {}).get("enabled"):
        draft.note(f"{path}.citations", "dropped", "the upstream cannot cite search results")
    draft.note(path, "emulated", "a search result is told as text")
    return [text_part(search_result_text(block))]


def _tool_reference(block: Block, path: str, draft: Draft) -> list[InputPart]:
    draft.note(path, "emulated", "a loaded tool is told as text")
    return [text_part(f"[tool loaded: {block['tool_name']}]")]


def _container_upload(block: Block, path: str, draft: Draft) -> list[InputPart]:
    draft.note(path, "dropped", "the file is in a container of another provider")
    return [text_part("[a file was uploaded here that is not available]")]


BLOCKS: Final[Mapping[str, Builder]] = {
    "container_upload": _container_upload,
    "document": _document,
    "image": _image,
    "search_result": _search_result,
    "text": _text,
    "tool_reference": _tool_reference,
}
