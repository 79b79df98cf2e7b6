// Keeps the status page live: refreshes the parts that an event concerns, counts down to the next runs, and reports news.
//
// An element with `data-live="ended said"` is loaded again from `data-live-url` (or from the URL of the page) when one of these
// events comes, and replaced by the element with the same id in the answer. With `data-live-key="heartbeat/NAME"` only the events
// of this agent count. With `data-live-every="20"` it is loaded at most every 20 seconds. The page works without this file, but has to be loaded again by hand.
"use strict";
(() => {
  const DELAY = 300, JITTER = 700, RETRY = 15000; // milliseconds
  const waiting = new Map(); // id of an element -> timer
  const missed = new Set(); // ids of elements to refresh when the tab is visible again
  const loaded = new Map(); // id of an element -> when it was loaded last
  const opened = Date.now();
  const ahead = Date.parse(document.body.dataset.now) - opened || 0; // how far the clock of the daemon is ahead of this one
  let stream = null;
  let queue = Promise.resolve(); // one part is loaded after the other, so that many open pages need few connections of the daemon

  document.addEventListener("htmx:config:request", (event) => {
    const code = document.body.dataset.formCode;
    if (code && event.detail.ctx) event.detail.ctx.request.headers["X-Form-Code"] = code;
  });

  function refresh(element) {
    if (!element.id) return;
    if (document.hidden) { missed.add(element.id); return; }
    if (waiting.has(element.id)) return;
    const every = 1000 * (element.dataset.liveEvery || 0);
    const rest = Math.max(0, (loaded.get(element.id) ?? opened) + every - Date.now());
    waiting.set(element.id, setTimeout(() => { queue = queue.then(() => load(element.id)); }, rest + DELAY + Math.random() * (JITTER + every / 4)));
  }

  async function load(id) {
    const element = document.getElementById(id);
    loaded.set(id, Date.now());
    try {
      if (!element || document.hidden || isInUse(element)) { if (element) missed.add(id); return; }
      const url = urlOf(element);
      const answer = await fetch(url, { headers: { "HX-Request": "true" }, credentials: "same-origin" });
      if (answer.status === 401) { location.assign("/page/login"); return; }
      if (!answer.ok) return;
      const whole = new DOMParser().parseFromString(await answer.text(), "text/html");
      replaceHead(whole);
      for (const each of document.querySelectorAll("[data-live][id]")) {
        const found = whole.getElementById(each.id);
        if (found && urlOf(each) === url && !isInUse(each)) replace(each, found);
      }
    } catch { /* the daemon restarts: the stream connects again, and everything is refreshed then */ } finally { waiting.delete(id); }
  }

  function urlOf(element) { return element.dataset.liveUrl || location.pathname + location.search; }

  // The title, the icon, the number of problems and the verdict are those of the page that was loaded last.
  function replaceHead(whole) {
    if (!whole.querySelector("header.top")) return; // it was a part of a page
    document.title = whole.title;
    document.querySelector("link[rel=icon]").href = whole.querySelector("link[rel=icon]").getAttribute("href");
    for (const where of ["#problem-count", "#verdict"]) {
      const old = document.querySelector(where), found = whole.querySelector(where);
      if (old && found && !old.contains(document.activeElement)) replace(old, found);
    }
  }

  // A person may be typing in it, or have a menu of it open.
  function isInUse(element) {
    const active = document.activeElement;
    return element.contains(active) && active.matches("input, select, textarea");
  }

  function replace(element, found) {
    if (element.outerHTML === found.outerHTML) return;
    const active = element.contains(document.activeElement) ? document.activeElement.id : "";
    const open = [...element.querySelectorAll("details[open][id]")].map((each) => each.id);
    const fresh = document.importNode(found, true);
    element.replaceWith(fresh);
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    if (active) document.getElementById(active)?.focus({ preventScroll: true });
    fresh.classList.add("changed");
    window.htmx?.process(fresh);
    countDown();
  }

  // A part inside another part is loaded again with it.
  function refreshAll() {
    for (const each of document.querySelectorAll("[data-live]")) if (!each.parentElement.closest("[data-live]")) refresh(each);
  }

  function receive(name, data) {
    const key = data.kind ? `${data.kind}/${data.name}` : null;
    for (const each of document.querySelectorAll(`[data-live~="${name}"]`)) {
      if (!each.dataset.liveKey || !key || each.dataset.liveKey === key) refresh(each);
    }
    if (name === "said") report(`${data.name} has sent an alert.`);
    if (name === "ended" && (data.result === "failed" || data.result === "timeout")) report(`${data.name}: ${data.result}.`);
    if (name === "reloaded") report("A new config is active.");
  }

  function report(text) {
    const news = document.getElementById("news");
    while (news.childElementCount > 4) news.firstElementChild.remove();
    const line = document.createElement("p");
    line.textContent = text;
    news.append(line);
  }

  function connect() {
    const url = document.body.dataset.events;
    if (!url || stream || document.hidden) return;
    stream = new EventSource(url);
    const own = stream;
    for (const name of ["started", "ended", "said", "skipped", "delivered", "question", "reloaded"]) {
      own.addEventListener(name, (event) => receive(name, JSON.parse(event.data)));
    }
    own.addEventListener("gap", refreshAll);
    own.addEventListener("open", () => show("Live."));
    own.addEventListener("error", () => {
      show("Not live: the page connects again.");
      if (own.readyState === EventSource.CLOSED) { close(); setTimeout(() => { connect(); refreshAll(); }, RETRY); }
    });
  }

  function close() { stream?.close(); stream = null; }
  function show(text) { const place = document.getElementById("live"); if (place && place.textContent !== text) place.textContent = text; }

  // A hidden tab has no stream, because browsers and the daemon limit their number.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { close(); return; }
    connect(); refreshAll(); missed.clear(); countDown();
  });
  document.addEventListener("focusout", () => setTimeout(() => {
    for (const id of [...missed]) { missed.delete(id); const each = document.getElementById(id); if (each) refresh(each); }
  }));

  function countDown() {
    for (const each of document.querySelectorAll("time[data-countdown]")) {
      const seconds = Math.round((Date.parse(each.dateTime) - Date.now() - ahead) / 1000);
      const text = seconds <= 0 ? "now" : `in ${format(seconds)}`;
      if (each.textContent !== text) each.textContent = text;
    }
  }

  function format(seconds) {
    const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
    if (minutes < 1) return `${seconds}s`;
    if (hours < 1) return `${minutes}m`;
    if (days < 1) return minutes % 60 ? `${hours}h${minutes % 60}m` : `${hours}h`;
    return hours % 24 ? `${days}d${hours % 24}h` : `${days}d`;
  }

  setInterval(() => { if (!document.hidden) countDown(); }, 1000);
  connect();
  countDown();
})();
