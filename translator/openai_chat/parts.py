"""How content parts of Chat messages are spelt."""

from typing import Final

from translator.parts import Block, Parts

from .types import ContentPart


class ChatParts(Parts[ContentPart]):
    def text(self, text: str) -> ContentPart:
        return {"type": "text", "text": text}

    def image(self, url: str) -> ContentPart:
        return {"type": "image_url", "image_url": {"url": url}}

    def file(self, name: str, data_url: str) -> ContentPart:
        return {"type": "file", "file": {"filename": name, "file_data": data_url}}

    def file_at(self, url: str) -> None:
        return None

    def mark(self, part: ContentPart, cache_control: Block | None = None) -> None:
        part["prompt_cache_breakpoint"] = {"mode": "explicit"}


PARTS: Final = ChatParts()


def collapsed(parts: list[ContentPart]) -> str | list[ContentPart]:
    """A plain string where there is only text: many local servers take nothing else."""
    for part in parts:
        if "text" not in part or "prompt_cache_breakpoint" in part:
            return parts
    return "\n\n".join([part["text"] for part in parts])


def is_text(part: ContentPart) -> bool:
    return "text" in part
