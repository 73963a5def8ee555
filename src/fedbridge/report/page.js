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
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
