"""The content parts of Chat Completions messages."""

from typing import Final

from translator.openai_chat.types import ContentPart
from translator.request.content_parts import Block, PartBuilder


class ChatPartBuilder(PartBuilder[ContentPart]):
    def text_part(self, text: str) -> ContentPart:
        return {"type": "text", "text": text}

    def image_part(self, url: str) -> ContentPart:
        return {"type": "image_url", "image_url": {"url": url}}

    def file_part(self, name: str, data_url: str) -> ContentPart:
        return {"type": "file", "file": {"filename": name, "file_data": data_url}}

    def file_url_part(self, url: str) -> None:
        return None

    def set_cache_breakpoint(self, part: ContentPart, cache_control: Block | None = None) -> None:
        part["prompt_cache_breakpoint"] = {"mode": "explicit"}


PART_BUILDER: Final = ChatPartBuilder()


def is_text(part: ContentPart) -> bool:
    return "text" in part
