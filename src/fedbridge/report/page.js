"use strict";

// Sort a table by the column whose heading is pressed (mouse, Enter or Space); empty cells last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const downwards = head.getAttribute("aria-sort") === "ascending";
    const key = (row) => row.cells[column].dataset.key;
    const compare = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
      return downwards ? -order : order;
    };
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", downwards ? "descending" : "ascending");
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
  }));
}

// A table that is wider than the page has a button at its edge until its end is seen.
for (const button of document.querySelectorAll(".onward")) {
  const box = button.previousElementSibling;
  const show = () => {
    button.hidden = box.scrollWidth - box.clientWidth - box.scrollLeft < 8;
  };
  button.addEventListener("click", () => box.scrollBy({ left: box.clientWidth / 2 }));
  box.addEventListener("scroll", show, { passive: true });
  new ResizeObserver(show).observe(box);
}

// Light or dark: as the system says, until the reader says otherwise.
{
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const show = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
    button.setAttribute("aria-pressed", String(isDark()));
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    show();
  });
  system.addEventListener("change", show);
  button.hidden = false;
  show();
}

// Charts: drawn one after the other with pauses, so that the page answers meanwhile.
const views = new Map();
{
  const { config, charts } = JSON.parse(document.getElementById("charts").textContent);
  const places = [...document.querySelectorAll("[data-chart]")];

  const rows = (packed) => {
    const names = Object.keys(packed);
    const columns = names.map((name) => {
      const column = packed[name];
      return Array.isArray(column) ? column : column.at.map((place) => column.of[place]);
    });
    return columns[0].map((_, row) =>
      Object.fromEntries(names.map((name, index) => [name, columns[index][row]])));
  };

  const unpack = async () => {
    const bytes = atob(document.getElementById("library").textContent);
    const stream = new Blob([Uint8Array.from(bytes, (byte) => byte.charCodeAt(0))]).stream();
    const text = await new Response(stream.pipeThrough(new DecompressionStream("gzip"))).text();
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
    script.remove();
    performance.mark("library ready");
  };

  const draw = async (place) => {
    const { spec, data } = charts[place.dataset.chart];
    const datasets = {};
    for (const name of Object.keys(data)) datasets[name] = rows(data[name]);
    const options = {
      mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, config,
      tooltip: { disableDefaultStyle: true },
    };
    const { view } = await window.vegaEmbed(place, { ...spec, datasets }, options);
    views.set(place.dataset.chart, view);
  };

  const pause = () => new Promise((next) => setTimeout(next));
  const start = async () => {
    if (!("DecompressionStream" in window)) {
      for (const place of places) {
        place.textContent = "This chart needs a browser of 2023 or later; the tables have its numbers.";
      }
      return;
    }
    await unpack();
    for (const place of places) {
      await draw(place);
      await pause();
    }
    performance.mark("charts drawn");
    document.documentElement.dataset.charts = "drawn";
  };
  if (places.length) start();
}

// Sensitivity and specificity at the threshold that the reader chooses.
for (const panel of document.querySelectorAll("[data-points]")) {
  const points = JSON.parse(panel.dataset.points);
  const slider = panel.querySelector("input");
  const show = () => {
    const point = points[slider.value];
    for (const field of panel.querySelectorAll("[data-field]")) {
      field.textContent = point[field.dataset.field];
    }
    slider.setAttribute("aria-valuetext", point.told);
    const view = views.get(panel.dataset.moves);
    if (view) view.signal("threshold", Number(slider.value)).runAsync();
  };
  slider.addEventListener("input", show);
  show();
}

// A link to a folded part opens it.
{
  const unfold = () => {
    const part = document.getElementById(location.hash.slice(1));
    if (part instanceof HTMLDetailsElement) part.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();
}

addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
