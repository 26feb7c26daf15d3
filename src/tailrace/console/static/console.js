// Refreshes the parts of a page that change. Without it, every page works: load it again.
"use strict";

(() => {
  const main = document.querySelector("main[data-live]");
  const area = document.getElementById("live");
  const freshness = document.getElementById("freshness");
  if (!main || !area || !window.EventSource) return;

  // Replaces what differs. A part that the reader is using (an open field) waits; open details stay.
  const refresh = (html) => {
    const fresh = new DOMParser().parseFromString(html, "text/html").body;
    const parts = fresh.querySelectorAll(":scope > [data-part]");
    const known = area.querySelectorAll(":scope > [data-part]");
    const same = parts.length && parts.length === known.length &&
      [...parts].every((part, at) => part.dataset.part === known[at].dataset.part);
    if (!same) {
      if (!area.contains(document.activeElement)) area.replaceChildren(...fresh.childNodes);
      return;
    }
    parts.forEach((part, at) => {
      const shown = known[at];
      shown.querySelectorAll("details").forEach((each, number) => {
        const twin = part.querySelectorAll("details")[number];
        if (twin && each.open) twin.open = true;
      });
      if (part.isEqualNode(shown)) return;
      const focused = shown.contains(document.activeElement) ? document.activeElement : null;
      if (focused && /INPUT|SELECT|TEXTAREA/.test(focused.tagName)) return;
      const all = "a, button, summary, [tabindex]";
      const place = focused ? [...shown.querySelectorAll(all)].indexOf(focused) : -1;
      const scrolled = [...shown.querySelectorAll(".scroll, .drawing")].map((each) => each.scrollLeft);
      shown.replaceWith(part);
      part.querySelectorAll(".scroll, .drawing").forEach((each, n) => { each.scrollLeft = scrolled[n] || 0; });
      if (place >= 0) part.querySelectorAll(all)[place]?.focus({ preventScroll: true });
    });
  };

  // The page must not look healthy because nothing arrives: it says since when it is old.
  const ALIVE_MS = 40000, RETRY_MS = 5000;
  const stale = document.getElementById("stale");
  let source = null, timer = 0, failing = false;
  const after = (ms, what) => { clearTimeout(timer); timer = setTimeout(what, ms); };
  const show = (text, lost) => {
    freshness.hidden = false;
    freshness.textContent = text;
    freshness.classList.toggle("lost", lost);
    main.classList.toggle("stale", lost);
    if (!lost) { stale.replaceChildren(); return; }
    if (stale.firstChild) return;
    const note = document.createElement("p");
    note.className = "note error";
    note.textContent = `Not connected since ${new Date().toLocaleTimeString()}: this page shows an older state.`;
    stale.append(note);
  };
  // The server sends something at least every 15 s.
  const heard = () => { failing = false; show("live", false); after(ALIVE_MS, lost); };
  const open = () => {
    source = new EventSource(main.dataset.live);
    source.addEventListener("alive", heard);
    source.addEventListener("page", (event) => { refresh(JSON.parse(event.data)); heard(); });
    source.onerror = () => {
      // The browser connects again by itself, unless the server has refused it.
      if (source.readyState === EventSource.CLOSED) lost();
      else if (!failing) { failing = true; after(2 * RETRY_MS, lost); }
    };
    after(ALIVE_MS, lost);
  };
  const close = () => { clearTimeout(timer); source?.close(); source = null; failing = false; };
  const lost = () => {
    close();
    show("not connected", true);
    after(RETRY_MS, again);
  };
  // The page itself says what to do: it may be that of the login.
  const again = async () => {
    const asked = { cache: "no-store", headers: { accept: "text/html" } };
    const answer = await fetch(location.href, asked).catch(() => null);
    const typing = /INPUT|SELECT|TEXTAREA/.test(document.activeElement?.tagName);
    if (answer?.ok && !typing) location.reload(); else after(RETRY_MS, again);
  };
  // A hidden page costs the server nothing.
  const follow = () => { if (document.hidden) close(); else if (!source) open(); };
  document.addEventListener("visibilitychange", follow);
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", follow);
  follow();
})();
