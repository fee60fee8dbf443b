"""Content blocks of user turns and tool results -> content parts of Chat messages."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from translator.draft import Draft
from translator.errors import BadRequest
from translator.render import document_text, search_result_text

from .types import ContentPart

Block = dict[str, Any]
Builder = Callable[[Block, str, Draft], list[ContentPart]]


def user_parts(block: Block, path: str, draft: Draft) -> list[ContentPart]:
    """The parts of one user block; BadRequest for a type that has no Chat form."""
    kind = block["type"]
    if kind not in USER_BLOCKS:
        raise BadRequest(f"{path}.type", f"{kind!r} is not supported by this upstream")
    parts = USER_BLOCKS[kind](block, path, draft)
    if parts and draft.profile.cache_breakpoints and block.get("cache_control"):
        mark_breakpoint(parts[-1])
    return parts


def mark_breakpoint(part: ContentPart) -> None:
    part["prompt_cache_breakpoint"] = {"mode": "explicit"}


def text_part(text: str) -> ContentPart:
    return {"type": "text", "text": text}


def collapsed(parts: list[ContentPart]) -> str | list[ContentPart]:
    """A plain string where there is only text: many local servers take nothing else."""
    texts = []
    for part in parts:
        if "text" not in part or len(part) > 2:  # a picture, or a text with a breakpoint
            return parts
        texts.append(part["text"])
    return "\n\n".join(texts)


def is_text(part: ContentPart) -> bool:
    return "text" in part


def _text(block: Block, path: str, draft: Draft) -> list[ContentPart]:
    text = block["text"]
    return [{"type": "text", "text": text}] if text and not text.isspace() else []


def _image(block: Block, path: str, draft: Draft) -> list[ContentPart]:
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
    return [{"type": "image_url", "image_url": {"url": url}}]


def _document(block: Block, path: str, draft: Draft) -> list[ContentPart]:
    source = block["source"]
    if (block.get("citations") or {}).get("enabled"):
        draft.note(f"{path}.citations", "dropped", "the upstream cannot cite documents")
    match source.get("type"):
        case "base64" if draft.profile.files:
            return [_pdf(block, source)]
        case "base64":
            raise BadRequest(f"{path}.source", "this upstream takes no PDF documents")
        case "text":
            draft.note(path, "emulated", "a document is told as text")
            return [text_part(document_text(block))]
        case "content":
            draft.note(path, "emulated", "a document is told as text")
            return _document_content(block, source["content"], path, draft)
        case "url":
            raise BadRequest(f"{path}.source.type", "this upstream fetches no documents by URL")
        case kind:
            raise BadRequest(f"{path}.source.type", f"{kind!r}: files live at another provider")


def _pdf(block: Block, source: Block) -> ContentPart:
    file = {
        "filename": block.get("title") or "document.pdf",
        "file_data": f"data:{source['media_type']};base64,{source['data']}",
    }
    return {"type": "file", "file": file}


def _document_content(block: Block, content: Any, path: str, draft: Draft) -> list[ContentPart]:
    if isinstance(content, str):
        return [text_part(document_text(block))]
    heading = [block[name] for name in ("title", "context") if block.get(name)]
    parts = [text_part("\n".join(heading))] if heading else []
    for number, inner in enumerate(content):
        parts += user_parts(inner, f"{path}.source.content.{number}", draft)
    return parts


def _search_result(block: Block, path: str, draft: Draft) -> list[ContentPart]:
    if (block.get("citations") or {}).get("enabled"):
        draft.note(f"{path}.citations", "dropped", "the upstream cannot cite search results")
    draft.note(path, "emulated", "a search result is told as text")
    return [text_part(search_result_text(block))]


def _tool_reference(block: Block, path: str, draft: Draft) -> list[ContentPart]:
    draft.note(path, "emulated", "a loaded tool is told as text")
    return [text_part(f"[tool loaded: {block['tool_name']}]")]


USER_BLOCKS: Final[Mapping[str, Builder]] = {
    "document": _document,
    "image": _image,
    "search_result": _search_result,
    "text": _text,
    "tool_reference": _tool_reference,
}
