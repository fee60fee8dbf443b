/* Ctrl-K and Cmd-K move the focus to the search box in the header. */
(() => {
  "use strict";
  document.addEventListener("keydown", event => {
    if (!(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey || event.key.toLowerCase() !== "k") return;
    const box = document.getElementById("search-box");
    if (!box) return;
    event.preventDefault();   // browsers use Ctrl-K for their own search
    box.focus();
    box.select();
  });
})();
