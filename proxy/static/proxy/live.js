/* Updates the live view: over a WebSocket, else by polling every three seconds. All values are
   inserted as text; rows are clones of the template in the page. */
(() => {
  "use strict";
  const root = document.getElementById("live");
  const part = Object.fromEntries([...root.querySelectorAll("[data-live]")].map(element => [element.dataset.live, element]));
  const token = part.token.querySelector("input").value;
  const SHOW_ENDED_MS = 60_000, POLL_MS = 3_000, RETRY_MS = 2_000, MAX_FAILURES = 2;
  const STATES = {
    feed: "Connected", poll: "Polling every 3 seconds", pause: "Paused", wait: "Connecting…", lost: "Connection lost; reconnecting",
    out: "You are signed out", page: "",
  };
  const rows = new Map();   // id -> {tr, startedAt, endedAt}; endedAt 0: running
  let socket = null, failures = 0, pollTimer = null, paused = false;

  const setState = name => { part.link.dataset.state = name; part["link-text"].textContent = STATES[name]; };

  const formatAge = ms => {
    if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
    const seconds = Math.floor(ms / 1000);
    return `${Math.floor(seconds / 60)} min ${String(seconds % 60).padStart(2, "0")} s`;
  };

  const cell = (tr, name) => tr.querySelector(`[data-cell="${name}"]`);

  function addRow(id) {
    const tr = part.row.content.querySelector("tr").cloneNode(true);
    tr.dataset.id = id;
    const form = cell(tr, "stop");
    form.querySelector("input").value = token;
    form.addEventListener("submit", stop);
    part.rows.prepend(tr);
    const entry = {tr, startedAt: performance.now(), endedAt: 0};
    rows.set(id, entry);
    return entry;
  }

  function updateRow(data) {
    const entry = rows.get(data.id) || addRow(data.id), tr = entry.tr;
    entry.startedAt = performance.now() - data.age_ms;
    entry.endedAt = 0;
    tr.dataset.state = data.state;
    for (const name of ["text", "kind", "model", "upstream", "caller", "client", "session", "input", "output", "first"])
      cell(tr, name).textContent = data[name];
    cell(tr, "agent").textContent = data.agent ? `agent ${data.agent}` : "";
    cell(tr, "url").href = data.url;
    setLink(cell(tr, "session_url"), data.session_url);
    const form = cell(tr, "stop");
    form.hidden = !data.stop_url;
    if (data.stop_url) form.action = data.stop_url;
  }

  const setLink = (anchor, url) => { if (url) anchor.href = url; else anchor.removeAttribute("href"); };

  function markEnded(id) {
    const entry = rows.get(id);
    if (!entry || entry.endedAt) return;
    entry.endedAt = performance.now();
    entry.tr.dataset.state = "ended";
    cell(entry.tr, "text").textContent = "ended";
    cell(entry.tr, "stop").hidden = true;
  }

  function showOutcome(data) {
    const entry = rows.get(data.id);
    if (!entry) return;
    markEnded(data.id);
    entry.tr.dataset.state = data.tone;
    cell(entry.tr, "text").textContent = data.text;
    cell(entry.tr, "kind").textContent = data.stop_reason;
    for (const name of ["input", "output"]) cell(entry.tr, name).textContent = data[name];
    cell(entry.tr, "age").textContent = data.total;
    const cost = document.createElement("span");
    cost.className = "mb-quiet";
    cost.textContent = data.cost;
    const last = entry.tr.lastElementChild;
    last.querySelector(".mb-quiet")?.remove();
    last.append(cost);
  }

  function apply(message) {
    message.rows.slice().reverse().forEach(updateRow);
    (message.gone || []).forEach(markEnded);
    message.ended.forEach(showOutcome);
    part.count.textContent = message.count;
    part.incomplete.hidden = !message.incomplete;
    part.more.hidden = true;
    part.none.hidden = rows.size > 0;
  }

  function tick() {
    const now = performance.now();
    for (const [id, entry] of rows) {
      if (entry.endedAt && now - entry.endedAt > SHOW_ENDED_MS) { entry.tr.remove(); rows.delete(id); part.none.hidden = rows.size > 0; }
      else if (!entry.endedAt && !paused) cell(entry.tr, "age").textContent = formatAge(now - entry.startedAt);
    }
  }

  function connect() {
    setState("wait");
    const url = new URL(root.dataset.feed, location.href);
    url.protocol = url.protocol.replace("http", "ws");
    let isFirst = true;
    try { socket = new WebSocket(url); } catch { return poll(); }
    socket.onmessage = event => {
      const message = JSON.parse(event.data);
      if (isFirst) {   // rows of the page that are no longer running have ended
        const running = new Set(message.rows.map(row => row.id));
        for (const id of rows.keys()) if (!running.has(id)) markEnded(id);
      }
      isFirst = false;
      failures = 0;
      setState("feed");
      apply(message);
    };
    socket.onclose = event => {
      socket = null;
      if (paused) return;
      if (event.code === 4401) { setState("out"); location.reload(); return; }
      failures += 1;
      if (failures >= MAX_FAILURES) poll(); else { setState("lost"); setTimeout(() => paused || socket || connect(), RETRY_MS); }
    };
  }

  async function poll() {
    clearTimeout(pollTimer);
    if (paused) return;
    const known = [...rows].filter(([, entry]) => !entry.endedAt || !["good", "bad", "left"].includes(entry.tr.dataset.state)).map(([id]) => id);
    try {
      const response = await fetch(`${root.dataset.rows}?known=${known.slice(0, 100).join(",")}`, {headers: {accept: "application/json"}});
      if (response.redirected || !response.ok) throw new Error(String(response.status));
      const message = await response.json(), running = new Set(message.rows.map(row => row.id));
      message.gone = [...rows.keys()].filter(id => !running.has(id));
      setState("poll");
      apply(message);
    } catch { setState("lost"); }
    pollTimer = setTimeout(poll, POLL_MS);
  }

  async function stop(event) {
    event.preventDefault();
    const button = event.target.querySelector("button");
    button.disabled = true;
    try {
      const response = await fetch(event.target.action, {
        method: "POST", headers: {accept: "application/json", "x-csrftoken": token},
      });
      if (!response.ok) throw new Error(String(response.status));
      part.message.hidden = true;
      event.target.hidden = true;
    } catch {
      part.message.textContent = "The request could not be stopped: it has ended, or you lack the permission.";
      part.message.hidden = false;
    } finally { button.disabled = false; }
  }

  function togglePause() {
    paused = !paused;
    part.pause.setAttribute("aria-pressed", String(paused));
    part.pause.textContent = paused ? "Resume" : "Pause";
    if (paused) { clearTimeout(pollTimer); socket?.close(); setState("pause"); } else { failures = 0; connect(); }
  }

  for (const tr of part.rows.querySelectorAll("tr")) {
    rows.set(tr.dataset.id, {tr, startedAt: performance.now() - Number(cell(tr, "age").dataset.age), endedAt: 0});
    cell(tr, "stop").addEventListener("submit", stop);
  }
  part.pause.addEventListener("click", togglePause);
  setInterval(tick, 200);
  connect();
})();
