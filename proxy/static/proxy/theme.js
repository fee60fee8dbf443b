/* Colours before the first paint, and what the theme's templates ask Alpine for. No inline script
   anywhere: these are the names that a page's attributes may use. Without it the page is light,
   and everything can still be read and sent. */
"use strict";
(() => {
  const root = document.documentElement;
  const wishes = window.matchMedia("(prefers-color-scheme: dark)");
  const kept = (name, fallback) => {
    try { return JSON.parse(localStorage.getItem(name)) ?? fallback; } catch { return fallback; }
  };
  const keep = (name, value) => {
    try { localStorage.setItem(name, JSON.stringify(value)); } catch { /* private window: not kept */ }
  };
  const paint = () => {
    const chosen = kept("adminTheme", "auto");
    root.classList.toggle("dark", chosen === "dark" || (chosen === "auto" && wishes.matches));
  };
  root.classList.add("js");
  paint();
  wishes.addEventListener("change", paint);

  // The theme's search boxes for users, teams and keys are named by nothing but their own value.
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

  // j and k walk through the turns of a conversation: from the one in hand, else from what is seen.
  const nextTurn = (turns, step) => {
    const places = turns.map((turn) => turn.getBoundingClientRect());
    const held = turns.indexOf(document.activeElement);
    if (held >= 0 && places[held].bottom > 0 && places[held].top < innerHeight) return held + step;
    const tops = places.map((place) => place.top);
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
      adminTheme: kept("adminTheme", "auto"),
      switchTheme(name) {
        this.adminTheme = name;
        keep("adminTheme", name);
        paint();
      },
    }));
    Alpine.data("shell", () => ({
      activeTab: "",
      sidebarMobileOpen: false,
      sidebarDesktopOpen: kept("sidebarOpen", true),
      // The form's template reads these two by their global names, which this build of Alpine bars.
      window: { location: { pathname: location.pathname, search: location.search } },
      init() {
        this.activeTab = location.hash.slice(1) || this.$el.dataset.tab || "";
      },
      toggleSidebar() {
        if (window.matchMedia("(min-width: 80rem)").matches) {
          this.sidebarDesktopOpen = !this.sidebarDesktopOpen;
          keep("sidebarOpen", this.sidebarDesktopOpen);
        } else {
          this.sidebarMobileOpen = !this.sidebarMobileOpen;
        }
      },
    }));
    if (typeof searchForm === "function") Alpine.data("searchForm", searchForm);
  });
})();
