"""Images and PDFs of a transcript: served on request, sandboxed, with the transcript's permissions."""

import base64

import pytest

from proxy.models import AuditEntry
from tests.proxy.admin import factories
from tests.proxy.admin.factories import page

pytestmark = pytest.mark.django_db

PNG = b"\x89PNG\r\n\x1a\nrest"
PDF = b"%PDF-1.7 rest"
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>window.__pwned=1</script></svg>"
FILES = (
    ("image", "image/png", PNG), ("document", "application/pdf", PDF), ("image", "image/svg+xml", SVG),
    ("image", "image/png", SVG), ("document", "text/html", SVG), ("image", "image/png\r\nx: y", PNG),
)  # fmt: skip


def block(kind, media_type, content):
    encoded = base64.b64encode(content).decode()
    return {"type": kind, "source": {"type": "base64", "media_type": media_type, "data": encoded}}


@pytest.fixture
def exchange():
    blocks = [block(*each) for each in FILES]
    call = {"type": "tool_use", "id": "t", "name": "Screenshot", "input": {}}
    result = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [block("image", "image/png", PNG)],
    }
    return factories.record(
        body=factories.request_body(messages=[
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [*blocks, result]},
        ])
    )  # fmt: skip


def media(client, exchange, path):
    return client.get(f"/admin/proxy/exchange/{exchange.pk}/media/", {"path": path})


def test_the_page_offers_listed_types_behind_a_click(root, exchange):
    text = page(root, exchange).content.decode()

    links = [f"/{exchange.pk}/media/?path=messages.1.content.{n}" for n in range(len(FILES))]
    assert [f'{link}"' in text for link in links] == [True, True, False, True, False, False]
    assert text.count('<img loading="lazy"') == 3  # one of them in the tool's result
    assert f"/{exchange.pk}/media/?path=messages.1.content.6.content.0" in text
    assert text.count('data-viewer="/admin/pdf-viewer/"') == 1


def test_the_viewer_of_pdfs_is_a_sandboxed_frame_of_the_admin_only(root):
    viewer = root.get("/admin/pdf-viewer/")

    assert viewer["Content-Security-Policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"
    )
    assert viewer["X-Frame-Options"] == "SAMEORIGIN"
    assert root.get("/admin/my-readings/")["X-Frame-Options"] == "DENY"


def test_an_image_is_sandboxed_and_its_reading_is_in_the_log(root, exchange):
    image = media(root, exchange, "messages.1.content.0")
    pdf = media(root, exchange, "messages.1.content.1")

    assert (image.content, image["Content-Type"]) == (PNG, "image/png")
    assert (pdf.content, pdf["Content-Type"]) == (PDF, "application/pdf")
    assert image["Content-Disposition"] == f'inline; filename="{exchange.pk}.png"'
    assert pdf["Content-Disposition"].startswith("attachment")
    for each in (image, pdf):
        assert each["Content-Security-Policy"] == (
            "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; sandbox"
        )
        assert each["X-Content-Type-Options"] == "nosniff"
        assert "no-store" in each["Cache-Control"]
    assert [e.detail for e in AuditEntry.objects.filter(action="read").order_by("pk")] == [
        "file messages.1.content.0",
        "file messages.1.content.1",
    ]


@pytest.mark.parametrize(
    "path",
    [*(f"messages.1.content.{n}" for n in range(2, len(FILES))), "messages.1", "messages.9", "model", "", "answer"],
)  # fmt: skip
def test_other_types_and_bytes_that_do_not_match_are_not_served(root, exchange, path):
    assert media(root, exchange, path).status_code == 404


def test_broken_base64_is_not_served(root):
    broken = {**block("image", "image/png", PNG)["source"], "data": "§§"}
    message = {"role": "user", "content": [{"type": "image", "source": broken}]}
    exchange = factories.record(body=factories.request_body(messages=[message]))

    assert media(root, exchange, "messages.0.content.0").status_code == 404
