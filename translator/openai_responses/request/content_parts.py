"""The input parts of Responses API messages."""

from typing import Final

from translator.openai_responses.types import (
    CacheBreakpoint,
    InputFile,
    InputImage,
    InputPart,
    InputText,
)
from translator.request.content_parts import Block, PartBuilder


class InputPartBuilder(PartBuilder[InputPart]):
    def text_part(self, text: str) -> InputText:
        return {"type": "input_text", "text": text}

    def image_part(self, url: str) -> InputImage:
        return {"type": "input_image", "detail": "auto", "image_url": url}

    def file_part(self, name: str, data_url: str) -> InputFile:
        return {"type": "input_file", "filename": name, "file_data": data_url}

    def file_url_part(self, url: str) -> InputFile:
        return {"type": "input_file", "file_url": url}

    def set_cache_breakpoint(self, part: InputPart, cache_control: Block) -> None:
        """Set a cache breakpoint; without this capability the server chooses the cached prefix."""
        breakpoint_: CacheBreakpoint = {"mode": "explicit"}
        if cache_control.get("ttl") == "1h":
            breakpoint_["ttl"] = "12h"
        part["prompt_cache_breakpoint"] = breakpoint_


PART_BUILDER: Final = InputPartBuilder()
