"use strict";
/* Legends hide and show their series, sliders walk through the frames of a heat map, and a page of `aioli ui` asks its
   server for news. Without it every page is still whole. */
(() => {
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  document.documentElement.classList.add("live");

  const toggle = (name) => {
    const chart = name.closest("svg");
    const off = name.classList.toggle("off");
    name.setAttribute("aria-pressed", String(!off));
    for (const part of all(`[data-series="${name.dataset.legend}"]`, chart)) part.classList.toggle("off", off);
  };
  for (const name of all("[data-legend]")) {
    name.setAttribute("role", "button");
    name.setAttribute("tabindex", "0");
    name.setAttribute("aria-pressed", "true");
  }
  document.addEventListener("click", (event) => {
    const name = event.target.closest("[data-legend]");
    if (name) toggle(name);
  });
  document.addEventListener("keydown", (event) => {
    const name = event.target.closest("[data-legend]");
    if (name && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      toggle(name);
    }
  });

  const short = (value, most) => {
    const digits = Math.max(0, Math.min(3, 2 - Math.floor(Math.log10(most))));
    const text = Math.abs(value).toFixed(digits).replace(/^0\./, ".");
    return (value < 0 ? "-" : "+") + text;
  };
  const show = (figure, frames, k) => {
    const values = frames.values[k];
    const most = Math.max(...values.map((v) => (v === null ? 0 : Math.abs(v)))) || 1;
    for (const part of all("[data-cell]", figure)) {
      const value = values[Number(part.dataset.cell)];
      if (part.tagName === "rect") {
        part.setAttribute("fill", value < 0 ? frames.low : frames.high);
        part.setAttribute("fill-opacity", value === null ? "0" : (0.06 + (0.7 * Math.abs(value)) / most).toFixed(2));
      } else {
        part.textContent = value === null ? "–" : short(value, most);
      }
    }
    figure.querySelector("output").textContent = frames.names[k];
  };
  for (const figure of all("figure[data-heat]")) {
    const slider = figure.querySelector("input");
    let frames = null;
    slider.addEventListener("input", () => {
      frames ??= JSON.parse(figure.querySelector("script").textContent);
      show(figure, frames, Number(slider.value));
    });
  }

  const follow = document.body.dataset.follow;
  if (follow) {
    let before = null;
    const here = `aioli ${location.pathname}`;
    const place = JSON.parse(sessionStorage.getItem(here) ?? "null");
    sessionStorage.removeItem(here);
    if (place) {
      all("details").forEach((part, k) => { if (k in place.open) part.open = place.open[k]; });
      scrollTo(0, place.top);
    }
    const ask = async () => {
      try {
        const answer = await fetch(follow, { cache: "no-store" });
        const now = await answer.text();
        if (before !== null && now !== before && !document.hidden) {
          const open = all("details").map((part) => part.open);
          sessionStorage.setItem(here, JSON.stringify({ top: scrollY, open }));
          location.reload();
          return;
        }
        before ??= now;
      } catch {
        /* the server has gone: what is shown stays */
      }
      setTimeout(ask, 2000);
    };
    ask();
  }
})();
