// What stands beside the graph: the card of a node, the list of changes, the search, the table.

// ---- The card

const link = (node, text = node.name) => element("button", { type: "button", className: "link", onclick: () => openNode(node, { isFocused: true }) }, text);

function showCard(node, isFocused) {
  const title = element("h2", { id: "card-title", tabIndex: -1 }, node.op);
  const parts = engines.flatMap((engine) => cardOf(engine, node));
  fillCard(title, [
    element("p", { className: "name" }, element("code", {}, node.name)),
    ...(changes?.[node.id] ? [element("h3", {}, "What changed"), list(changes[node.id])] : []),
    ...parts, ...neighbours("Inputs", node.inputs, "from"), ...neighbours("Outputs", node.outputs, "to"),
  ], isFocused);
  say(`Card of ${spoken(engines[0], node)}`);
}

function fillCard(title, parts, isFocused) {
  const close = element("button", { type: "button", className: "close", "aria-label": "Close the card", onclick: closeCard }, "\u00d7");
  byId("card").replaceChildren(close, title, ...parts);
  byId("card").hidden = false;
  byId("card").scrollTop = 0;
  if (isFocused) title.focus();
}

const list = (sentences) => element("ul", {}, ...sentences.map((sentence) => element("li", {}, sentence)));

function cardOf(engine, node) {
  const card = engine.cards[node.id];
  const { requested, built, missed } = engine.values;
  const isMissed = missed?.[node.id];
  const own = engine.layers.filter((layer) => layer.nodes.length > 1 && layer.nodes.includes(node.id));
  const facts = [
    ...overlays.map((shown) => [shown, engine.values[shown.key][node.id]])
      .filter(([{ key }, value]) => value !== null && key !== "missed" && key !== "findings")
      .map(([shown, value]) => [shown.title, valueText(value, shown)]),
    ...(card?.facts ?? []).filter(([, value]) => !own.some(({ title }) => title === value)),
    ...own.map(({ title, nodes: ids }) => ["Engine layer", `${title} (${plural(ids.length, "node")})`]),
  ];
  return [
    ...(engines.length > 1 ? [element("h3", {}, engine.title)] : []),
    isMissed ? element("p", { className: "missed" }, `! Requested ${precisionName(requested?.[node.id]) || "otherwise"}, built ${precisionName(built?.[node.id]) || "otherwise"}`) : null,
    card || facts.length ? table(facts) : element("p", {}, "Nothing is known of this node beyond its place."),
    card?.why ? element("p", {}, card.why) : null,
    card?.command ? command(card.command) : null,
    ...(card?.histogram ? histogram(card.histogram) : []),
  ].filter(Boolean);
}

const table = (facts) => element("dl", {}, ...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]));

function command(text) {
  const button = element("button", { type: "button", onclick: () => copy(text, button) }, "Copy");
  return element("div", { className: "command" }, element("code", {}, text), button);
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(button.previousElementSibling);
    button.textContent = "Selected";
  }
}

function histogram({ tensor, bars, top, ranges }) {
  const [width, height] = [320, 88];
  const end = Math.max(top, ...ranges.map(([, amax]) => amax)) || 1;
  const each = ((top / end) * width) / bars.length;
  const drawn = Array.from(bars, (digit, at) => {
    const tall = (parseInt(digit, 36) / 35) * (height - 6);
    return shape("rect", { class: "bar", x: at * each, y: height - tall, width: Math.max(each - 0.5, 0.5), height: tall });
  });
  const marks = ranges.map(([, amax], at) => shape("line", { x1: (amax / end) * width, x2: (amax / end) * width, y1: 0, y2: height, "stroke-dasharray": ["none", "6 3", "2 2", "9 3 2 3"][at % 4] }));
  const text = `Values of ${tensor} up to ${figure(top)}; ranges: ${ranges.map(([name, amax]) => `${name} ${figure(amax)}`).join(", ") || "none"}`;
  const drawing = shape("svg", { class: "histogram", viewBox: `-1 0 ${width + 2} ${height + 2}`, role: "img", "aria-label": text }, ...drawn, ...marks);
  return [element("h3", {}, "Values (log count)"), drawing, element("p", { className: "name" }, text)];
}

function neighbours(title, edges, end) {
  if (!edges.length) return [];
  const rows = edges.slice(0, RESULTS_SHOWN).map((edge) => {
    const about = [edge[end].op, precisionName(edge.precision), edge.dims].filter(Boolean).join(", ");
    return element("li", {}, link(edge[end]), element("small", {}, ` ${about}`));
  });
  const more = edges.length - rows.length;
  return [element("h3", {}, title), element("ul", {}, ...rows, more > 0 ? element("li", {}, `and ${more} more`) : null)];
}

function closeCard() {
  const hadFocus = byId("card").contains(document.activeElement);
  byId("card").hidden = true;
  select(null);
  history.replaceState(null, "", location.pathname + location.search);
  sayCount();
  if (hadFocus && byId("table").hidden) focusActive();
}

// ---- What changed between two engines

let step = -1;

function showChanges(at = -1) {
  step = at;
  const move = (by) => () => showChanges((step + by + changedIds.length) % changedIds.length);
  const title = element("h2", { id: "card-title", tabIndex: -1 }, `What changed: ${plural(changedIds.length, "node")}`);
  const place = step < 0 ? "" : `${step + 1} of ${changedIds.length}`;
  const buttons = element("p", { className: "walk" }, element("button", { type: "button", id: "previous", onclick: move(step < 0 ? 0 : -1) }, "Previous"), element("button", { type: "button", id: "next", onclick: move(1) }, "Next"), place);
  const rows = (step < 0 ? changedIds.slice(0, ROWS_SHOWN) : [changedIds[step]]).map((id) => element("li", {}, link(nodes[id]), list(changes[id])));
  const more = step < 0 && changedIds.length > ROWS_SHOWN ? element("p", {}, `The first ${ROWS_SHOWN} of ${changedIds.length}.`) : null;
  const all = step < 0 ? null : element("button", { type: "button", className: "link", onclick: () => showChanges() }, "All changes");
  fillCard(title, [buttons, element("ul", {}, ...rows), more, all].filter(Boolean), false);
  if (step < 0) return title.focus();
  show(nodes[changedIds[step]]);
  say(`${place}: ${spoken(engines.at(-1), nodes[changedIds[step]])}`);
  return byId("next").focus();
}

// ---- Search

let results = [];
let marked = 0;

function search(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  results = words.length ? nodes.filter(({ name, op }) => words.every((word) => `${op} ${name}`.toLowerCase().includes(word))) : [];
  marked = 0;
  const rows = results.slice(0, RESULTS_SHOWN).map((node, at) => element("li", { id: `result-${at}`, role: "option", onclick: () => openResult(at) }, node.name, element("small", {}, ` ${node.op}`)));
  byId("results").replaceChildren(...rows);
  byId("results").hidden = !rows.length;
  byId("search").setAttribute("aria-expanded", rows.length > 0);
  if (words.length) say(results.length > RESULTS_SHOWN ? `The first ${RESULTS_SHOWN} of ${plural(results.length, "node")}` : `${plural(results.length, "node")} found`);
  mark(0);
}

function mark(at) {
  const rows = byId("results").children;
  marked = Math.max(0, Math.min(at, rows.length - 1));
  for (const [place, row] of [...rows].entries()) row.setAttribute("aria-selected", place === marked);
  rows[marked]?.scrollIntoView({ block: "nearest" });
  if (rows.length) byId("search").setAttribute("aria-activedescendant", `result-${marked}`);
  else byId("search").removeAttribute("aria-activedescendant");
}

function openResult(at) {
  const node = results[at];
  if (!node) return;
  byId("search").value = "";
  search("");
  openNode(node, { isFocused: true });
}

function onSearchKey(event) {
  if (event.key === "Enter") openResult(marked);
  else if (event.key === "ArrowDown") mark(marked + 1);
  else if (event.key === "ArrowUp") mark(marked - 1);
  else return;
  event.preventDefault();
}

// ---- The table

let order = { column: -1, isDown: false };
let tabled = root;

function columns() {
  const shown = engines.length > 1 ? engines.flatMap((engine) => (overlay ? [[`${overlay.title}, ${engine.title}`, engine, overlay]] : [])) : overlays.map((one) => [one.title, engines[0], one]);
  return [
    { title: "Node", value: ({ name }) => name }, { title: "Operator", value: ({ op }) => op }, { title: "Output", value: (node) => node.shape },
    ...shown.map(([title, engine, one]) => ({ title: one.unit ? `${title}, ${one.unit}` : title, isNumber: one.kind === "number", value: ({ id }) => (one.kind === "category" ? precisionName(engine.values[one.key][id]) || null : engine.values[one.key][id]) })),
  ];
}

function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  const sign = order.isDown ? -1 : 1;
  return sign * (typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
}

function showTable() {
  const heads = columns();
  const rows = tabled.ids.map((id) => nodes[id]);
  const { value } = heads[order.column] ?? {};
  if (value) rows.sort((a, b) => compare(value(a), value(b)));
  const drawing = element("table", {}, element("caption", { className: "hidden" }, `Nodes of ${tabled.title}`),
    element("thead", {}, element("tr", {}, ...heads.map(tableHead))), element("tbody", {}, ...rows.slice(0, ROWS_SHOWN).map((node) => tableRow(node, heads))));
  const about = rows.length > ROWS_SHOWN ? `The first ${ROWS_SHOWN} of ${plural(rows.length, "node")} in this order.` : plural(rows.length, "node");
  byId("table").replaceChildren(element("p", { className: "about" }, blockChoice(), about), drawing);
}

function blockChoice() {
  const choice = element("select", { "aria-label": "Block of the table", onchange: () => { tabled = choice.value === "top" ? root : blocks[choice.value.slice(1)]; showTable(); } });
  const path = (block) => [...above(block)].slice(0, -1).reverse().concat(block).map(({ title }) => title).join(" / ");
  choice.append(...[root, ...blocks].map((block) => element("option", { value: block.key, selected: block === tabled }, block === root ? root.title : path(block))));
  return choice;
}

function tableHead({ title, isNumber }, column) {
  const sorted = order.column === column ? (order.isDown ? "descending" : "ascending") : "none";
  const arrow = { descending: " \u2193", ascending: " \u2191", none: "" }[sorted];
  const sort = () => { order = { column, isDown: order.column === column && !order.isDown }; showTable(); byId("table").querySelectorAll("thead button")[column].focus(); };
  return element("th", { scope: "col", className: isNumber ? "n" : "", "aria-sort": sorted }, element("button", { type: "button", onclick: sort }, title + arrow));
}

function tableRow(node, heads) {
  const cells = heads.slice(1).map(({ value, isNumber }) => {
    const own = value(node);
    return element("td", { className: isNumber ? "n" : "" }, own === null ? "\u2013" : isNumber ? figure(own) : String(own));
  });
  return element("tr", {}, element("th", { scope: "row" }, link(node)), ...cells);
}

function switchTable() {
  const isTable = byId("table").hidden;
  byId("table").hidden = !isTable;
  byId("panes").hidden = isTable;
  byId("as-table").setAttribute("aria-pressed", isTable);
  tabled = active && !isNode(active) ? active : active?.parent ?? root;
  if (isTable) showTable();
  else drawLater();
}
