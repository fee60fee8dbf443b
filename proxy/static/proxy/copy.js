/* Copies the text of the element that a button names. */
(() => {
  "use strict";
  document.addEventListener("click", async event => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const words = button.textContent, text = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      const range = document.createRange();   // no clipboard without https: mark it, to be copied by hand
      range.selectNodeContents(text);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "Marked: copy it now";
    }
    setTimeout(() => { button.textContent = words; }, 2500);
  });
})();
