// How a reader moves in the graph: the view, folding, the choice of a box by keyboard, pointer and address.

// ---- The view: one for all panes

const view = { x: 0, y: 0, scale: 1 };
const panes = [];
let active = null;
let selected = null;

const isFar = () => view.scale < 0.45;

function paneSize() {
  const { clientWidth, clientHeight } = panes[0].svg;
  return { width: clientWidth, height: clientHeight };
}

function setView(x, y, scale) {
  Object.assign(view, { x, y, scale });
  for (const pane of panes) pane.world.setAttribute("transform", `translate(${x} ${y}) scale(${scale})`);
  drawLater();
}

let motion = 0;
let goal = null;

function moveView(x, y, scale) {
  cancelAnimationFrame(motion);
  if (calm.matches || document.hidden) return setView(x, y, scale);
  const from = { ...view };
  goal = { x, y, scale };
  const start = performance.now();
  const step = (now) => {
    const part = Math.min(1, Math.max(0, (now - start) / 220));
    const eased = 1 - (1 - part) ** 3;
    const between = (a, b) => a + (b - a) * eased;
    setView(between(from.x, x), between(from.y, y), between(from.scale, scale));
    if (part < 1) motion = requestAnimationFrame(step);
    else goal = null;
  };
  motion = requestAnimationFrame(step);
}

// A click that comes while the view moves zooms from where it goes to.
function zoomAt(px, py, factor) {
  cancelAnimationFrame(motion);
  if (goal) Object.assign(view, goal);
  goal = null;
  const scale = Math.min(3, Math.max(0.01, view.scale * factor));
  const ratio = scale / view.scale;
  setView(px - (px - view.x) * ratio, py - (py - view.y) * ratio, scale);
}

function zoomBy(factor) {
  const { width, height } = paneSize();
  zoomAt(width / 2, height / 2, factor);
}

function fit(move = moveView) {
  const { width, height } = paneSize();
  const scale = Math.max(SMALLEST_FIT, Math.min(1, (width - 48) / scene.width, (height - 48) / scene.height));
  move((width - scene.width * scale) / 2, Math.max(24, (height - scene.height * scale) / 2), scale);
}

// At the start the text can be read: the beginning of the network, at its full width if that is possible.
function showStart() {
  const { width, height } = paneSize();
  const scale = Math.min(1, Math.max(LEGIBLE, (width - 48) / scene.width));
  const whole = Math.min(1, (height - 48) / scene.height, (width - 48) / scene.width);
  if (whole >= LEGIBLE) return fit(setView);
  const first = root.children[0];
  const x = scene.width * scale <= width ? (width - scene.width * scale) / 2 : width / 2 - (first.x + first.width / 2) * scale;
  return setView(x, 28, scale);
}

// Of a pane the part that a sheet with the card leaves free.
function freeSize() {
  const { width, height } = paneSize();
  const top = byId("card").hidden ? Infinity : byId("card").getBoundingClientRect().top;
  const free = top - panes[0].svg.getBoundingClientRect().top;
  return { width, height: free > 80 ? Math.min(height, free) : height };
}

function centre(item) {
  const { width, height } = freeSize();
  const scale = Math.max(0.8, Math.min(view.scale, 1.2));
  const y = item.isOpen ? item.y + Math.min(item.height, height / scale - 60) / 2 : item.y + item.height / 2;
  const lowest = Math.min(28, height - 28 - scene.height * scale);
  const top = Math.min(28, Math.max(height / 2 - y * scale, lowest));
  moveView(width / 2 - (item.x + item.width / 2) * scale, top, scale);
}

function reveal(item) {
  const { width, height } = freeSize();
  const [left, top] = [view.x + item.x * view.scale, view.y + item.y * view.scale];
  const bottom = top + Math.min(item.height, HEAD) * view.scale;
  if (left < 8 || top < 8 || left + item.width * view.scale > width - 8 || bottom > height - 8 || isFar()) centre(item);
}

// ---- Folding

function say(text) {
  byId("status").textContent = text;
}

function write(text) {
  byId("count").textContent = text;
  say(text);
}

function sayCount(more = "") {
  const boxes = scene.items.filter((item) => !item.isOpen).length;
  write(`${boxes.toLocaleString("en")} ${boxes === 1 ? "box" : "boxes"} for ${plural(nodes.length, "node")}${more}`);
}

function refresh(kept, more) {
  const before = kept && isShown(kept) ? { x: kept.x, y: kept.y } : null;
  rebuildScene();
  if (!active || !isShown(active)) active = shownFor(active ?? root.children[0]);
  if (before && isShown(kept)) setView(view.x + (before.x - kept.x) * view.scale, view.y + (before.y - kept.y) * view.scale, view.scale);
  sayCount(more);
  draw();
}

function toggle(block) {
  block.isOpen = !block.isOpen;
  setActive(block);
  layOutAll();
  refresh(block);
  if (panes.some(({ svg }) => svg.contains(document.activeElement))) focusActive();
  reveal(block);
}

async function unfoldAll() {
  let count = scene.items.length;
  const queue = [root];
  let isCut = false;
  while (queue.length) {
    const block = queue.shift();
    if (!block.isOpen && count + block.children.length > UNFOLDED_LIMIT) { isCut = true; continue; }
    if (!block.isOpen) count += block.children.length;
    block.isOpen = true;
    queue.push(...block.children.filter((child) => !isNode(child)));
  }
  write("Laying out \u2026");
  await layOutInSlices();
  refresh(active, isCut ? `; the page unfolds at most ${UNFOLDED_LIMIT.toLocaleString("en")} boxes at once` : "");
  reveal(active);
}

function foldAll() {
  for (const block of blocks) block.isOpen = false;
  layOutAll();
  refresh();
  fit();
}

// ---- Choosing a box

function setActive(item) {
  for (const pane of panes) pane.drawn.get(active)?.setAttribute("tabindex", -1);
  active = item;
  for (const pane of panes) pane.drawn.get(active)?.setAttribute("tabindex", 0);
}

function focusActive(pane = focusedPane()) {
  reveal(active);
  if (!pane.drawn.has(active)) draw();
  if (!pane.drawn.has(active)) stamp += 1, draw();
  pane.drawn.get(active)?.focus({ preventScroll: true });
}

const focusedPane = () => panes.find(({ svg }) => svg.contains(document.activeElement)) ?? panes[0];

function select(item) {
  selected = item;
  if (item) setActive(item);
  for (const pane of panes) {
    for (const [shown, drawing] of pane.drawn) drawing.classList.toggle("selected", shown === item);
    pane.lines.replaceChildren(...drawLines(scene.lines.filter(lineIsIn), pane.map.childElementCount > 0));
  }
}

// Unfold the blocks around a node, and bring it to the middle.
function show(node) {
  for (const block of above(node)) block.isOpen = true;
  layOutAll();
  refresh(active);
  setActive(node);
  select(node);
  centre(node);
}

function openNode(node, { isFocused = false } = {}) {
  showCard(node, isFocused);
  if (!isShown(node)) show(node);
  else { select(node); reveal(node); }
  history.replaceState(null, "", `#node=${encodeURIComponent(node.name)}`);
}

function choose(item, isFocused = false) {
  if (isNode(item)) openNode(item, { isFocused });
  else toggle(item);
}

// ---- Keyboard: a walk over the boxes

// A line that leaves the block goes on in the block around it; one that comes from outside begins at the block itself.
function along(item, isDown, enters = item.isOpen) {
  if (isDown && enters) return item.children.find((child) => child.near.some(({ from }) => from === INPUT)) ?? item.children[0];
  const [own, other] = isDown ? ["from", "to"] : ["to", "from"];
  const ends = item.near.filter((line) => line[own] === item).map((line) => line[other]);
  const inside = ends.filter((end) => end !== INPUT && end !== OUTPUT);
  inside.sort((a, b) => Math.abs(a.y - item.y) - Math.abs(b.y - item.y) || a.x - b.x);
  if (inside.length) return inside[0];
  if (item.parent === root) return null;
  return isDown ? along(item.parent, true, false) : item.parent;
}

function beside(item, step) {
  const row = item.parent.children.filter((other) => other === item || (other.y < item.y + item.height && item.y < other.y + other.height));
  row.sort((a, b) => a.x - b.x);
  return row[row.indexOf(item) + step] ?? null;
}

const KEYS = {
  ArrowDown: () => along(active, true), ArrowUp: () => along(active, false),
  ArrowLeft: () => beside(active, -1), ArrowRight: () => beside(active, 1),
  Home: () => scene.items[0], End: () => scene.items.at(-1),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key in KEYS) walk(KEYS[event.key]());
  else if (event.key === "Enter" || event.key === " ") choose(active, true);
  else if (event.key === "+" || event.key === "-") zoomBy(event.key === "+" ? 1.25 : 0.8);
  else if (event.key === "0") fit();
  else return;
  event.preventDefault();
}

function walk(item) {
  if (!item) return;
  setActive(item);
  focusActive();
}

// ---- Pointers

function itemAt(pane, event) {
  const drawing = event.target.closest?.(".box");
  if (drawing) return itemOf.get(drawing);
  if (event.detail === 0) return null;
  const bounds = pane.svg.getBoundingClientRect();
  const [x, y] = [(event.clientX - bounds.left - view.x) / view.scale, (event.clientY - bounds.top - view.y) / view.scale];
  const under = scene.items.filter((item) => isIn({ left: x, right: x, top: y, bottom: y }, item.x, item.y, item.width, item.height));
  return under.findLast((item) => !item.isOpen) ?? null;
}

function onClick(pane, event) {
  if (pane.wasDragged) return;
  const item = itemAt(pane, event);
  if (item?.isOpen && !isOnHead(pane, item, event)) return;
  if (item) choose(item);
}

function isOnHead(pane, item, event) {
  const y = (event.clientY - pane.svg.getBoundingClientRect().top - view.y) / view.scale;
  return event.detail === 0 || y < item.y + HEAD;
}

const pointers = new Map();

function onDown(pane, event) {
  cancelAnimationFrame(motion);
  goal = null;
  pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
  if (pointers.size === 1) Object.assign(pane, { wasDragged: false, start: { x: event.clientX, y: event.clientY } });
}

function onMove(pane, event) {
  const before = pointers.get(event.pointerId);
  if (!before) return;
  if (!pane.wasDragged && pane.start && Math.hypot(event.clientX - pane.start.x, event.clientY - pane.start.y) < DRAG_PX) return;
  if (!pane.wasDragged) pane.svg.setPointerCapture(event.pointerId);
  pane.wasDragged = true;
  pane.svg.classList.add("dragged");
  const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, point]) => point);
  const now = { x: event.clientX, y: event.clientY };
  pointers.set(event.pointerId, now);
  if (others.length) pinch(pane, before, now, others[0]);
  else setView(view.x + now.x - before.x, view.y + now.y - before.y, view.scale);
}

function pinch(pane, before, now, other) {
  const bounds = pane.svg.getBoundingClientRect();
  const distance = (point) => Math.hypot(point.x - other.x, point.y - other.y) || 1;
  zoomAt((now.x + other.x) / 2 - bounds.left, (now.y + other.y) / 2 - bounds.top, distance(now) / distance(before));
  setView(view.x + (now.x - before.x) / 2, view.y + (now.y - before.y) / 2, view.scale);
}

function onUp(pane, event) {
  pointers.delete(event.pointerId);
  pane.svg.classList.remove("dragged");
}

function onWheel(pane, event) {
  event.preventDefault();
  const bounds = pane.svg.getBoundingClientRect();
  const turn = event.deltaMode ? event.deltaY * 30 : event.deltaY;
  zoomAt(event.clientX - bounds.left, event.clientY - bounds.top, Math.exp(-Math.max(-240, Math.min(240, turn)) / 500));
}

// ---- Start

function buildPane(engine) {
  const layers = ["frames", "map", "hulls", "lines", "boxes", "marks"].map((name) => shape("g", { class: name }));
  const world = shape("g", {}, ...layers);
  const svg = shape("svg", { class: "graph", role: "application", "aria-roledescription": "graph", "aria-label": `Graph of ${engine.title}`, "aria-describedby": "keys" }, world);
  const [frames, map, hulls, lines, boxes, marks] = layers;
  const pane = { engine, svg, world, frames, map, hulls, lines, boxes, marks, drawn: new Map(), wasDragged: false, copies: Map.groupBy(engine.copies, ({ from, to }) => `${from}>${to}`) };
  const title = element("h2", { className: engines.length > 1 ? "" : "hidden" }, engine.title);
  if (engine.estimated) title.append(element("small", {}, " times are estimates"));
  byId("panes").append(element("section", { className: "pane", "aria-label": engine.title }, title, svg));
  const on = (event, act, options) => svg.addEventListener(event, (happened) => act(pane, happened), options);
  on("pointerdown", onDown);
  on("pointermove", onMove);
  for (const end of ["pointerup", "pointercancel"]) on(end, onUp);
  on("wheel", onWheel, { passive: false });
  on("click", onClick);
  svg.addEventListener("keydown", onKey);
  svg.addEventListener("focusin", ({ target }) => { const item = itemOf.get(target); if (item) setActive(item); });
  panes.push(pane);
}

function changeOverlay() {
  overlay = overlays[byId("overlay").selectedIndex];
  stamp += 1;
  if (byId("table").hidden) draw();
  else showTable();
}

function openAddress() {
  const [, name] = /^#node=(.*)$/s.exec(location.hash) ?? [];
  if (name === undefined) return;
  let target = name;
  try { target = decodeURIComponent(name); } catch { /* not encoded: taken as it is */ }
  const node = nodes.find((one) => one.name === target);
  if (node) openNode(node);
  else write("The address names a node that is not in this graph.");
}

function listen() {
  const on = (id, event, act) => byId(id).addEventListener(event, act);
  on("overlay", "change", changeOverlay);
  on("zoom-in", "click", () => zoomBy(1.4));
  on("zoom-out", "click", () => zoomBy(1 / 1.4));
  on("fit", "click", () => fit());
  on("unfold-all", "click", unfoldAll);
  on("fold-all", "click", foldAll);
  on("as-table", "click", switchTable);
  on("changed", "click", () => showChanges());
  on("search", "input", () => search(byId("search").value));
  on("search", "keydown", onSearchKey);
  on("search", "blur", () => setTimeout(() => { byId("results").hidden = true; byId("search").setAttribute("aria-expanded", false); }, 150));
  addEventListener("keydown", (event) => { if (event.key === "Escape" && !byId("card").hidden) closeCard(); });
  addEventListener("hashchange", openAddress);
  addEventListener("resize", drawLater);
}

function start() {
  buildNetwork();
  unfoldFirst();
  engines.forEach(buildPane);
  byId("overlay").append(...overlays.map(({ title }) => element("option", {}, title)));
  byId("overlay").disabled = !overlays.length;
  byId("changed").hidden = engines.length < 2 || !changedIds.length;
  byId("changed").textContent = `Changed (${changedIds.length})`;
  byId("legend").open = innerWidth > 720;
  if (engines.length === 1 && engines[0].estimated) byId("subtitle").append(" Times are estimates.");
  layOutAll();
  refresh();
  showStart();
  listen();
  openAddress();
  performance.mark("drawn");
}

start();
