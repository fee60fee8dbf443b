"""Images and PDFs of a transcript as files: only types that are on a list and match their bytes."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.views.decorators.clickjacking import xframe_options_sameorigin
from django.views.decorators.http import require_safe

from proxy.admin.core.csp_middleware import BARE_CSP, set_security_headers

IMAGE: Final = "image"
PDF: Final = "pdf"
KINDS: Final[Mapping[str, tuple[str, bytes, str]]] = {
    "image/png": (IMAGE, b"\x89PNG\r\n\x1a\n", "png"),
    "image/jpeg": (IMAGE, b"\xff\xd8\xff", "jpg"),
    "image/gif": (IMAGE, b"GIF8", "gif"),
    "image/webp": (IMAGE, b"RIFF", "webp"),
    "application/pdf": (PDF, b"%PDF-", "pdf"),
}
"""Media type -> how the page offers it, the first bytes of such a file, and its ending.

SVG is missing on purpose: it can contain scripts.
"""

VIEWER_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'; sandbox allow-scripts"
)
"""The frame that draws PDFs has an opaque origin: no cookies, no access to the admin, no network
but the project's own scripts and styles."""


@require_safe
@xframe_options_sameorigin
def viewer_view(request: HttpRequest) -> HttpResponse:
    """Return the sandboxed frame that draws a PDF; the embedding page sends the file to it."""
    page = TemplateResponse(request, "admin/proxy/exchange/pdf_viewer.html")
    return set_security_headers(page, csp=VIEWER_CSP)


def media_kind(source: Mapping[str, Any]) -> str:
    """Return how the page offers a block's ``source``: image, pdf, or "" for not at all."""
    known = KINDS.get(str(source.get("media_type")))
    is_stored = source.get("type") == "base64" and isinstance(source.get("data"), str)
    return known[0] if known and is_stored else ""


def media_response(block: Any, name: str) -> HttpResponse | None:
    """Return the file of an image or document block; None if it has none of a listed type.

    The response is sandboxed: even opened on its own, it can run nothing and load nothing. A
    browser saves a PDF, because its own viewer does not work in a sandbox; the page draws the file
    in the frame of ``viewer_view``.
    """
    source = block.get("source") if isinstance(block, dict) else None
    if not isinstance(source, dict) or not (kind := media_kind(source)):
        return None
    media_type = str(source["media_type"])
    _, magic, ending = KINDS[media_type]
    try:
        content = base64.b64decode(source["data"], validate=True)
    except (binascii.Error, ValueError):
        return None
    if not content.startswith(magic):
        return None
    response = HttpResponse(content, content_type=media_type)
    disposition = "inline" if kind == IMAGE else "attachment"
    response["Content-Disposition"] = f'{disposition}; filename="{name}.{ending}"'
    response["Cross-Origin-Resource-Policy"] = "same-origin"
    return set_security_headers(response, csp=BARE_CSP)
