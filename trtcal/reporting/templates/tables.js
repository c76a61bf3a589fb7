"use strict";
// Sorting and searching of tables, and rows as cards on a phone. Without it every number is still there.

function sortKey(cell) {
  const given = cell.dataset.v;
  const text = given === undefined ? cell.textContent.trim() : given;
  const plain = text.replaceAll(",", "").replaceAll("\u2212", "-");
  return text === "\u2013" ? "" : Number.isNaN(Number(plain)) ? text : plain;
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
  for (const row of body.querySelectorAll("tr.opened")) row.remove();
  for (const button of body.querySelectorAll("[aria-expanded=true]")) button.setAttribute("aria-expanded", "false");
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

const SVG = document.querySelector("svg").namespaceURI;

function make(name, attributes, ...children) {
  const svg = ["svg", "path", "line"].includes(name);
  const one = svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const key in attributes) one.setAttribute(key, attributes[key]);
  one.append(...children);
  return one;
}

// A search field above every table that asks for one: rows that lack a word are hidden.
for (const table of document.querySelectorAll("table.searchable")) {
  const field = make("input", { type: "search", autocomplete: "off" });
  const found = make("span", { class: "note", "aria-live": "polite" });
  const label = make("label", { class: "search" }, "Search ", field, found);
  table.closest(".scroll").before(label);
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    found.textContent = words.length ? `${shown} of ${table.tBodies[0].rows.length}` : "";
  });
}

// On a phone a row of a wide table is a card, in which each cell says what it is.
for (const table of document.querySelectorAll(".scroll table:not(.fit)")) {
  const heads = Array.from(table.tHead.rows[table.tHead.rows.length - 1].cells, (head) => head.textContent.trim());
  table.classList.add("cards");
  for (const row of table.tBodies[0].rows) {
    Array.from(row.cells).forEach((cell, column) => {
      if (column && heads[column]) cell.dataset.head = heads[column];
    });
  }
}
