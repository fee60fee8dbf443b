"""A PDF of a transcript is drawn in a sandboxed frame behind a click, and its script does not run."""

import base64
import http.client
import json
from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Frame, expect

from tests.fakes.servers.gateway import Gateway

from .conftest import assert_no_violations, log_in, secrets_of

SCRIPT = "app.alert('pwned'); this.submitForm('https://example.com/');"
CONTENT = "0 0 1 rg 20 20 160 60 re f BT /F1 24 Tf 40 120 Td (Invoice) Tj ET"
OBJECTS = (
    f"<< /Type /Catalog /Pages 2 0 R /OpenAction << /S /JavaScript /JS ({SCRIPT}) >> >>",
    "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
    "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 200] /Contents 4 0 R /Resources 6 0 R >>",
    f"<< /Length {len(CONTENT)} >>\nstream\n{CONTENT}\nendstream",
    "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    "<< /Font << /F1 5 0 R >> >>",
)
BLUE_PIXELS = """() => {
  const canvas = document.querySelector("canvas");
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let i = 0; i < data.length; i += 4) if (data[i] < 50 && data[i + 2] > 200) count += 1;
  return count / (data.length / 4);
}"""
"""The part of the first page that is blue; the rectangle is a quarter of it."""
REACHES_OUT = """() => Promise.all([
  new Promise(done => { try { done(String(parent.document.title)); } catch (e) { done(e.name); } }),
  new Promise(done => { try { done(document.cookie); } catch (e) { done(e.name); } }),
  fetch("/admin/").then(() => "fetched", e => e.name),
])"""
"""What a script in the frame, such as one of a PDF that breaks the parser, could read."""


def pdf_with_script() -> bytes:
    """Return a PDF of one page that runs a script when a viewer with scripts opens it."""
    text, offsets = "%PDF-1.7\n", []
    for number, content in enumerate(OBJECTS, start=1):
        offsets.append(len(text))
        text += f"{number} 0 obj\n{content}\nendobj\n"
    start, entries = len(text), "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    text += f"xref\n0 {len(OBJECTS) + 1}\n0000000000 65535 f \n{entries}"
    text += f"trailer << /Size {len(OBJECTS) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n"
    return text.encode()


def send_file(gateway: Gateway, data: bytes, title: str) -> None:
    """Send a request with the file; its transcript is posted within a second."""
    source = {
        "type": "base64",
        "media_type": "application/pdf",
        "data": base64.b64encode(data).decode(),
    }
    content = [
        {"type": "document", "title": title, "source": source},
        {"type": "text", "text": title},
    ]
    body = {"model": "claude-sonnet-5", "max_tokens": 50,
            "messages": [{"role": "user", "content": content}]}  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    headers = {"x-api-key": secrets_of(gateway)[0]}
    connection.request("POST", "/v1/messages", json.dumps(body), headers)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    connection.close()


@pytest.mark.slow
def test_a_pdf_is_drawn_in_a_sandbox_and_its_script_does_not_run(
    office: Gateway, window: Callable[..., BrowserContext]
) -> None:
    send_file(office, pdf_with_script(), "The invoice")
    send_file(office, b"%PDF-1.7 nothing that can be drawn", "A broken file")
    page = window().new_page()
    dialogs: list[str] = []
    requested: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: requested.append(request.url))
    log_in(page, office)

    def open_file(title: str) -> Frame:
        page.goto(f"{office.url}/admin/proxy/exchange/")
        row = page.locator("#result_list tbody tr").filter(has_text=title)
        row.get_by_role("link").first.click()
        assert page.locator("iframe").count() == 0
        page.locator("details[data-viewer] summary").first.click()
        handle = page.locator("iframe").element_handle()
        frame = handle.content_frame()
        assert frame is not None
        frame.wait_for_selector("body[data-drawn]")
        return frame

    frame = open_file("The invoice")
    assert frame.evaluate("document.body.dataset.drawn") == "1"
    assert 0.2 < frame.evaluate(BLUE_PIXELS) < 0.3
    assert frame.evaluate("window.__blocked") == []
    assert frame.evaluate("origin") == "null"
    assert frame.evaluate(REACHES_OUT) == ["SecurityError", "SecurityError", "TypeError"]
    expect(page.get_by_role("link", name="Download")).to_be_visible()
    assert_no_violations(page)

    broken = open_file("A broken file")
    assert "cannot be shown" in broken.locator("#state").inner_text()
    assert_no_violations(page)
    assert dialogs == []
    assert [url for url in requested if not url.startswith((office.url, "blob:", "data:"))] == []
