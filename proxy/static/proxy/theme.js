/* Sets dark or light mode before the first paint, and defines the Alpine data that the theme's
   templates use. The CSP forbids inline scripts, so attributes may use only these names. Without
   JavaScript the page is light, and all content and forms still work. */
"use strict";
(() => {
  const root = document.documentElement;
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const load = (name, fallback) => {
    try { return JSON.parse(localStorage.getItem(name)) ?? fallback; } catch { return fallback; }
  };
  const save = (name, value) => {
    try { localStorage.setItem(name, JSON.stringify(value)); } catch { /* private window: not saved */ }
  };
  const paint = () => {
    const chosen = load("adminTheme", "auto");
    root.classList.toggle("dark", chosen === "dark" || (chosen === "auto" && prefersDark.matches));
  };
  root.classList.add("js");
  paint();
  prefersDark.addEventListener("change", paint);

  // The theme's search boxes for users, teams and keys have no label; take that of their field.
  const nameSearchBoxes = () => {
    for (const select of document.querySelectorAll("select.admin-autocomplete")) {
      const label = select.id && document.querySelector(`label[for="${CSS.escape(select.id)}"]`);
      const box = select.parentElement?.querySelector(".select2-selection[role=combobox]");
      if (!label || !box) continue;
      label.id ||= `${select.id}-label`;
      const value = box.getAttribute("aria-labelledby") ?? "";
      if (!value.includes(label.id)) box.setAttribute("aria-labelledby", `${label.id} ${value}`.trim());
      box.querySelector("[role=textbox]")?.setAttribute("aria-labelledby", label.id);
    }
  };
  window.addEventListener("load", () => setTimeout(nameSearchBoxes, 0));

  // The keys j and k move the focus to the next and previous turn of a conversation: from the focused
  // turn, or else from the visible ones.
  const nextTurn = (turns, step) => {
    const boxes = turns.map((turn) => turn.getBoundingClientRect());
    const focused = turns.indexOf(document.activeElement);
    if (focused >= 0 && boxes[focused].bottom > 0 && boxes[focused].top < innerHeight) return focused + step;
    const tops = boxes.map((box) => box.top);
    return step > 0 ? tops.findIndex((top) => top > 0) : tops.findLastIndex((top) => top < 0);
  };
  document.addEventListener("keydown", (press) => {
    const step = { j: 1, k: -1 }[press.key];
    const typing = press.target.closest?.("input, textarea, select, [contenteditable]");
    if (!step || typing || press.ctrlKey || press.metaKey || press.altKey) return;
    const turns = [...document.querySelectorAll(".mb-turn")];
    const turn = turns[nextTurn(turns, step)];
    if (!turn) return;
    turn.tabIndex = -1;
    turn.focus({ preventScroll: true });
    turn.scrollIntoView({ block: "start" });
  });

  document.addEventListener("alpine:init", () => {
    const Alpine = window.Alpine;
    Alpine.data("theme", () => ({
      openModal: false,
      filterOpen: false,
      adminTheme: load("adminTheme", "auto"),
      switchTheme(name) {
        this.adminTheme = name;
        save("adminTheme", name);
        paint();
      },
    }));
    Alpine.data("shell", () => ({
      activeTab: "",
      sidebarMobileOpen: false,
      sidebarDesktopOpen: load("sidebarOpen", true),
      // The form's template reads these two globals, which this build of Alpine does not allow.
      window: { location: { pathname: location.pathname, search: location.search } },
      init() {
        this.activeTab = location.hash.slice(1) || this.$el.dataset.tab || "";
      },
      toggleSidebar() {
        if (window.matchMedia("(min-width: 80rem)").matches) {
          this.sidebarDesktopOpen = !this.sidebarDesktopOpen;
          save("sidebarOpen", this.sidebarDesktopOpen);
        } else {
          this.sidebarMobileOpen = !this.sidebarMobileOpen;
        }
      },
    }));
    if (typeof searchForm === "function") Alpine.data("searchForm", searchForm);
  });
})();
