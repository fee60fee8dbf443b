/* Follows the running requests: over a WebSocket, else by asking every three seconds. Whatever
   comes is written as text; rows are clones of the page's own template. */
(() => {
  "use strict";
  const root = document.getElementById("live");
  const part = Object.fromEntries([...root.querySelectorAll("[data-live]")].map(one => [one.dataset.live, one]));
  const token = part.token.querySelector("input").value;
  const KEEP_MS = 60_000, ASK_MS = 3_000, RETRY_MS = 2_000, TRIES = 2;
  const WORDS = {
    feed: "Following", ask: "Asking every 3 seconds", pause: "Paused", wait: "Connecting…", lost: "Connection lost; trying again",
    out: "You are signed out", page: "",
  };
  const rows = new Map();   // id -> {tr, began, over}
  let socket = null, failures = 0, asking = null, paused = false;

  const state = name => { part.link.dataset.state = name; part["link-word"].textContent = WORDS[name]; };

  const age = ms => {
    if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
    const whole = Math.floor(ms / 1000);
    return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  };

  const cell = (tr, name) => tr.querySelector(`[data-cell="${name}"]`);

  function place(id) {
    const tr = part.row.content.querySelector("tr").cloneNode(true);
    tr.dataset.id = id;
    const form = cell(tr, "stop");
    form.querySelector("input").value = token;
    form.addEventListener("submit", stop);
    part.rows.prepend(tr);
    const one = {tr, began: performance.now(), over: 0};
    rows.set(id, one);
    return one;
  }

  function write(told) {
    const one = rows.get(told.id) || place(told.id), tr = one.tr;
    one.began = performance.now() - told.age_ms;
    one.over = 0;
    tr.dataset.state = told.state;
    for (const name of ["word", "kind", "model", "by", "caller", "client", "session", "input", "output", "first"])
      cell(tr, name).textContent = told[name];
    cell(tr, "agent").textContent = told.agent ? `agent ${told.agent}` : "";
    cell(tr, "url").href = told.url;
    link(cell(tr, "session_url"), told.session_url);
    const form = cell(tr, "stop");
    form.hidden = !told.stop_url;
    if (told.stop_url) form.action = told.stop_url;
  }

  const link = (anchor, url) => { if (url) anchor.href = url; else anchor.removeAttribute("href"); };

  function leave(id) {
    const one = rows.get(id);
    if (!one || one.over) return;
    one.over = performance.now();
    one.tr.dataset.state = "over";
    cell(one.tr, "word").textContent = "ended";
    cell(one.tr, "stop").hidden = true;
  }

  function settle(told) {
    const one = rows.get(told.id);
    if (!one) return;
    leave(told.id);
    one.tr.dataset.state = told.tone;
    cell(one.tr, "word").textContent = told.word;
    cell(one.tr, "kind").textContent = told.stop_reason;
    for (const name of ["input", "output"]) cell(one.tr, name).textContent = told[name];
    cell(one.tr, "age").textContent = told.total;
    const cost = document.createElement("span");
    cost.className = "mb-quiet";
    cost.textContent = told.cost;
    const last = one.tr.lastElementChild;
    last.querySelector(".mb-quiet")?.remove();
    last.append(cost);
  }

  function take(told) {
    told.rows.slice().reverse().forEach(write);
    (told.gone || []).forEach(leave);
    told.settled.forEach(settle);
    part.count.textContent = told.count;
    part.away.hidden = !told.away;
    part.more.hidden = true;
    part.none.hidden = rows.size > 0;
  }

  function tick() {
    const now = performance.now();
    for (const [id, one] of rows) {
      if (one.over && now - one.over > KEEP_MS) { one.tr.remove(); rows.delete(id); part.none.hidden = rows.size > 0; }
      else if (!one.over && !paused) cell(one.tr, "age").textContent = age(now - one.began);
    }
  }

  function follow() {
    state("wait");
    const url = new URL(root.dataset.feed, location.href);
    url.protocol = url.protocol.replace("http", "ws");
    let fresh = true;
    try { socket = new WebSocket(url); } catch { return ask(); }
    socket.onmessage = event => {
      const told = JSON.parse(event.data);
      if (fresh) {   // what we showed and is not among the running any more has ended meanwhile
        const running = new Set(told.rows.map(row => row.id));
        for (const id of rows.keys()) if (!running.has(id)) leave(id);
      }
      fresh = false;
      failures = 0;
      state("feed");
      take(told);
    };
    socket.onclose = event => {
      socket = null;
      if (paused) return;
      if (event.code === 4401) { state("out"); location.reload(); return; }
      failures += 1;
      if (failures >= TRIES) ask(); else { state("lost"); setTimeout(() => paused || socket || follow(), RETRY_MS); }
    };
  }

  async function ask() {
    clearTimeout(asking);
    if (paused) return;
    const known = [...rows].filter(([, one]) => !one.over || !["good", "bad", "left"].includes(one.tr.dataset.state)).map(([id]) => id);
    try {
      const answer = await fetch(`${root.dataset.rows}?known=${known.slice(0, 100).join(",")}`, {headers: {accept: "application/json"}});
      if (answer.redirected || !answer.ok) throw new Error(String(answer.status));
      const told = await answer.json(), running = new Set(told.rows.map(row => row.id));
      told.gone = [...rows.keys()].filter(id => !running.has(id));
      state("ask");
      take(told);
    } catch { state("lost"); }
    asking = setTimeout(ask, ASK_MS);
  }

  async function stop(event) {
    event.preventDefault();
    const button = event.target.querySelector("button");
    button.disabled = true;
    try {
      const answer = await fetch(event.target.action, {
        method: "POST", headers: {accept: "application/json", "x-csrftoken": token},
      });
      if (!answer.ok) throw new Error(String(answer.status));
      part.says.hidden = true;
      event.target.hidden = true;
    } catch {
      part.says.textContent = "That request could not be stopped: it has ended, or you may not.";
      part.says.hidden = false;
    } finally { button.disabled = false; }
  }

  function pause() {
    paused = !paused;
    part.pause.setAttribute("aria-pressed", String(paused));
    part.pause.textContent = paused ? "Resume" : "Pause";
    if (paused) { clearTimeout(asking); socket?.close(); state("pause"); } else { failures = 0; follow(); }
  }

  for (const tr of part.rows.querySelectorAll("tr")) {
    rows.set(tr.dataset.id, {tr, began: performance.now() - Number(cell(tr, "age").dataset.age), over: 0});
    cell(tr, "stop").addEventListener("submit", stop);
  }
  part.pause.addEventListener("click", pause);
  setInterval(tick, 200);
  follow();
})();
