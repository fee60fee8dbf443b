"""The result blocks of a web search: Anthropic's form for the client, and text for the model.

``encrypted_content``, which a client sends back unchanged, contains the text of a result, so that
the model can read it in later requests. It is not encrypted.
"""

import base64
from collections.abc import Mapping
from typing import Any, Final

Block = dict[str, Any]

OWN_CONTENT: Final = "bridge."
"""The prefix of the ``encrypted_content`` that this package writes."""
SERVER_ID: Final = "srvtoolu_"
"""The prefix of the ids of server tool calls, before the id of the model's function call."""


def search_result(*, url: str, title: str, text: str, page_age: str | None) -> Block:
    """Return one ``web_search_result``. ``text``: the part of the page that the model reads."""
    encoded = base64.urlsafe_b64encode(text.encode(errors="replace")).decode()
    return {
        "type": "web_search_result",
        "url": url,
        "title": title,
        "encrypted_content": OWN_CONTENT + encoded,
        "page_age": page_age,
    }


def search_error(code: str) -> Block:
    """Return the content of a failed search. ``code``: one of Anthropic's, as ``unavailable``."""
    return {"type": "web_search_tool_result_error", "error_code": code}


def is_own_content(value: object) -> bool:
    """Return whether ``encrypted_content`` was written by this package, not by Anthropic."""
    return isinstance(value, str) and value.startswith(OWN_CONTENT)


def tool_result(block: Mapping[str, Any]) -> Block:
    """Return a ``web_search_tool_result`` as the result of a function call, for the model."""
    content = block.get("content")
    result: Block = {"type": "tool_result", "tool_use_id": function_id(block["tool_use_id"])}
    if isinstance(content, list):
        found = [_result_text(each) for each in content if isinstance(each, dict)]
        return result | {"content": "\n\n".join(found) or "The search found nothing."}
    code = content.get("error_code") if isinstance(content, dict) else None
    return result | {"content": f"The search failed: {code or 'no result'}.", "is_error": True}


def function_id(server_id: str) -> str:
    """Return the id of the model's function call for the id of a server tool call."""
    return server_id.removeprefix(SERVER_ID) or server_id


def _result_text(result: Mapping[str, Any]) -> str:
    lines = (result.get("title"), result.get("url"), result.get("page_age"), _own_text(result))
    return "\n".join(line for line in lines if isinstance(line, str) and line)


def _own_text(result: Mapping[str, Any]) -> str:
    """Return the text inside ``encrypted_content``; "" if another service wrote it."""
    content = result.get("encrypted_content")
    if not (isinstance(content, str) and is_own_content(content)):
        return ""
    try:
        return base64.urlsafe_b64decode(content.removeprefix(OWN_CONTENT)).decode(errors="replace")
    except ValueError:
        return ""
