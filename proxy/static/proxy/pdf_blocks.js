/* Shows a PDF of a transcript when its block is opened: the page fetches the file, and sends it to a
   sandboxed frame (pdf_viewer.mjs). Without JavaScript the block has its download link only. */
"use strict";
(() => {
  async function show(block) {
    const frame = document.createElement("iframe");
    frame.setAttribute("sandbox", "allow-scripts");
    frame.title = block.querySelector("summary").textContent.trim();
    frame.src = block.dataset.viewer;
    const loaded = new Promise(resolve => frame.addEventListener("load", resolve, {once: true}));
    block.append(frame);
    try {
      const response = await fetch(block.dataset.file);
      if (!response.ok || response.redirected) throw new Error(String(response.status));
      const pdf = await response.arrayBuffer();
      await loaded;
      // The frame has an opaque origin, which no other target than "*" matches.
      frame.contentWindow.postMessage({pdf}, "*", [pdf]);
    } catch {
      frame.remove();
      const message = document.createElement("p");
      message.className = "mb-failed";
      message.textContent = "The PDF could not be loaded.";
      block.append(message);
    }
  }
  for (const block of document.querySelectorAll("details[data-viewer]")) {
    block.addEventListener("toggle", () => { if (block.open && !block.querySelector("iframe")) show(block); });
  }
})();
