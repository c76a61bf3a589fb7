"use strict";
// Sorting for tables that ask for it, and all details opened on paper. Without it nothing is missing.

function sortKey(cell) {
  const given = cell.dataset.v;
  return given === undefined ? cell.textContent.trim() : given;
}

function compareKeys(a, b) {
  if (a === "" || b === "") return (a === "") - (b === "");
  const numbers = [Number(a), Number(b)];
  return numbers.some(Number.isNaN) ? a.localeCompare(b, "en", { numeric: true }) : numbers[0] - numbers[1];
}

function sortBy(table, header, column) {
  const direction = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => [sortKey(row.cells[column]), row]);
  rows.sort((a, b) => (a[0] === "" || b[0] === "" ? 1 : direction) * compareKeys(a[0], b[0]));
  body.append(...rows.map((pair) => pair[1]));
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = table.tHead.rows[table.tHead.rows.length - 1].cells;
  Array.from(heads).forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => sortBy(table, header, column));
  });
}

let opened = [];
addEventListener("beforeprint", () => {
  opened = Array.from(document.querySelectorAll("details:not([open])"));
  for (const one of opened) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of opened) one.open = false;
});
