/* Draws the PDF that the embedding page sends. It runs in a sandboxed frame, whose origin is opaque:
   it has no cookies and cannot read the embedding page. Only pixels are drawn: no script of the PDF
   runs, and its links and forms do nothing. The worker is imported, because a frame with an opaque
   origin cannot start one. */
import * as pdf from "./vendor/pdf-5.6.205.min.mjs";
import * as worker from "./vendor/pdf.worker-5.6.205.min.mjs";

globalThis.pdfjsWorker = worker;

const MAX_PAGES = 100, MAX_PIXELS = 4_000_000;   // of the document, and of one drawn page
const pages = document.getElementById("pages"), state = document.getElementById("state");

async function drawPage(page, number) {
  const width = Math.max(200, pages.clientWidth);
  const size = page.getViewport({scale: 1});
  const largest = Math.sqrt(MAX_PIXELS / (size.width * size.height));
  const viewport = page.getViewport({scale: Math.min(width * devicePixelRatio / size.width, largest)});
  const canvas = document.createElement("canvas");
  canvas.width = viewport.width;
  canvas.height = viewport.height;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Page ${number}`);
  pages.append(canvas);
  await page.render({canvas, viewport, annotationMode: pdf.AnnotationMode.DISABLE}).promise;
}

async function draw(data) {
  const task = pdf.getDocument({
    data, isEvalSupported: false, enableXfa: false, useWasm: false, useSystemFonts: true,
    stopAtErrors: false, maxImageSize: MAX_PIXELS * 4,
  });
  const file = await task.promise;
  const shown = Math.min(file.numPages, MAX_PAGES);
  for (let number = 1; number <= shown; number += 1) await drawPage(await file.getPage(number), number);
  state.textContent = shown < file.numPages ? `The first ${shown} of ${file.numPages} pages are shown.` : "";
  document.body.dataset.drawn = String(shown);
}

window.addEventListener("message", event => {
  if (event.source !== window.parent || !(event.data?.pdf instanceof ArrayBuffer)) return;
  draw(new Uint8Array(event.data.pdf)).catch(error => {
    state.textContent = error?.name === "PasswordException"
      ? "The PDF needs a password." : "The PDF cannot be shown. It can still be downloaded.";
    document.body.dataset.drawn = "0";
  });
}, {once: true});
