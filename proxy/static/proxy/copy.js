/* Copy buttons: a click copies the text of the element in data-copy. */
(() => {
  "use strict";
  document.addEventListener("click", async event => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const label = button.textContent, text = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      const range = document.createRange();   // no clipboard without https: select the text for a manual copy
      range.selectNodeContents(text);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "Selected: copy it now";
    }
    setTimeout(() => { button.textContent = label; }, 2500);
  });
})();
