// Details of the chart's points, histograms of any tensor. Without it every number is still there.

// What the chart's points say, on hover and on focus, with the command that made each.
const pointDetails = document.getElementById("chart-details");
for (const point of document.querySelectorAll(".chart [id*=point-]")) {
  const made = document.querySelector(`[data-point="${point.id.split("point-")[1]}"] td`);
  const show = () => {
    pointDetails.hidden = false;
    pointDetails.textContent = point.getAttribute("aria-label") + (made ? `. Command: ${made.textContent}` : "");
  };
  point.addEventListener("mouseenter", show);
  point.addEventListener("focus", show);
}

// The name of a node opens it in the graph beside the report.
for (const cell of document.querySelectorAll("[data-graph] tbody th")) {
  const page = cell.closest("table").dataset.graph, name = cell.firstChild.data;
  cell.firstChild.replaceWith(make("a", { href: `${page}#node=${encodeURIComponent(name)}` }, name));
}

// A small histogram in every row that names a tensor; it opens a large one beneath.
const { methods, tensors } = JSON.parse(document.getElementById("tensors").textContent);
const WIDTH = 400, HEIGHT = 100;

function picture([bars, observed, ranges]) {
  const step = WIDTH / bars.length;
  let way = `M0 ${HEIGHT}`;
  for (const bar of bars) way += `V${(HEIGHT - (HEIGHT * parseInt(bar, 36)) / 35).toFixed(1)}h${step}`;
  const marks = ranges.flatMap((amax, order) => {
    const x = Math.min(amax / observed, 1) * WIDTH;
    const place = { x1: x, x2: x, y1: 0, y2: HEIGHT, class: `mark m${order % 6}` };
    return amax === null ? [] : [make("line", place)];
  });
  const box = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" };
  return make("svg", box, make("path", { class: "bars", d: `${way}V${HEIGHT}z` }), ...marks);
}

function sample(order) {
  const line = make("line", { x1: 0, x2: 24, y1: 4, y2: 4, class: `mark m${order % 6}` });
  return make("svg", { viewBox: "0 0 24 8", "aria-hidden": "true" }, line);
}

function large(name, tensor) {
  const [, observed, ranges, tail] = tensor;
  const ends = ranges.map((amax, order) => `the range of ${methods[order]} ends at ${amax ?? "no value"}`);
  const facts = [`horizontal axis: 0 to ${observed}, the largest value; vertical axis: counts, logarithmic`];
  if (tail.length) facts.push(`samples with the largest values: ${tail.join("; ")}`);
  const list = make("ul", {}, ...facts.map((fact) => make("li", {}, fact)));
  list.append(...ends.map((end, order) => make("li", {}, sample(order), end)));
  return make("div", { class: "big" }, make("strong", {}, name), picture(tensor), list);
}

for (const cell of document.querySelectorAll("#rows td[data-t]")) {
  const tensor = tensors[cell.dataset.t], name = cell.previousElementSibling.firstChild.textContent;
  const label = { type: "button", class: "mini", "aria-expanded": "false", "aria-label": `Histogram of ${name}` };
  const button = make("button", label, picture(tensor));
  cell.append(button);
  button.addEventListener("click", () => {
    const row = cell.parentNode, next = row.nextElementSibling;
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) next.remove();
    else row.after(make("tr", { class: "opened" }, make("td", { colspan: row.cells.length }, large(name, tensor))));
  });
}

// A link to what only engineers are shown changes the reading.
function reveal() {
  const target = document.getElementById(location.hash.slice(1));
  if (target && target.closest(".engineer")) {
    document.getElementById("reading-engineer").checked = true;
    target.scrollIntoView();
  }
}
addEventListener("hashchange", reveal);
reveal();

// The reading stays over a reload, and in a link that is passed on.
for (const one of document.querySelectorAll("[name=reading]")) {
  if (location.hash === `#${one.id}`) one.checked = true;
  one.addEventListener("change", () => history.replaceState(null, "", `#${one.id}`));
}

// A command is copied by a click on it.
for (const block of document.querySelectorAll(".copied")) {
  const command = block.firstElementChild, button = make("button", { type: "button" }, "Copy");
  block.append(button);
  block.addEventListener("click", async () => {
    getSelection().selectAllChildren(command);
    try {
      await navigator.clipboard.writeText(command.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
    }
  });
}

let opened = [];
addEventListener("beforeprint", () => {
  const isWhole = document.getElementById("reading-engineer").checked;
  opened = isWhole ? Array.from(document.querySelectorAll("details:not([open])")) : [];
  for (const one of opened) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of opened) one.open = false;
});
