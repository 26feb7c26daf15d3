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

  let source = null;
  const show = (text) => { freshness.hidden = false; freshness.textContent = text; };
  const open = () => {
    source = new EventSource(main.dataset.live);
    source.addEventListener("page", (event) => { refresh(JSON.parse(event.data)); show("live"); });
    source.onerror = () => show("not connected");
  };
  const close = () => { source?.close(); source = null; };
  // A hidden page costs the server nothing.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close(); else if (!source) open();
  });
  window.addEventListener("pagehide", close);
  if (!document.hidden) open();
})();
