"""The switch between rendered and raw texts on the pages with conversations."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpRequest

RENDERED: Final = "rendered"
RAW: Final = "raw"
LABELS: Final[Mapping[str, str]] = {RENDERED: "Rendered", RAW: "Raw"}


def text_mode(request: HttpRequest) -> str:
    """Return the mode that the query parameter ``text`` or the last visit chose.

    A new choice is stored in Django's session.
    """
    stored = request.session.get("text_mode", RENDERED)
    chosen = str(request.GET.get("text", stored))
    if chosen not in LABELS:
        chosen = RENDERED
    if chosen != stored:
        request.session["text_mode"] = chosen
    return chosen


def text_mode_links(request: HttpRequest, mode: str) -> list[dict[str, Any]]:
    """Return the links of the switch: the open page, with the parameter ``text``."""
    kept = {name: value for name, value in request.GET.items() if name != "text"}
    return [
        {"label": label, "url": f"?{urlencode({**kept, 'text': name})}", "current": name == mode}
        for name, label in LABELS.items()
    ]
