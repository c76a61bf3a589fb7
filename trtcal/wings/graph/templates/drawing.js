// What is drawn of a scene: boxes in the colours of an overlay, lines, marks and the legend.

// ---- Values of the overlay: of a node its own, of a folded block the sum, the worst or the mix

let overlay = overlays[0];
let stamp = 0;

function valueOf(engine, item, shown = overlay) {
  const values = engine.values[shown.key];
  if (isNode(item)) return values[item.id];
  const known = item.ids.map((id) => values[id]).filter((value) => value !== null);
  if (!known.length) return null;
  if (SUMMED.has(shown.key)) return known.reduce((sum, value) => sum + value, 0);
  return known.reduce((worst, value) => (shown.bad === "low" ? Math.min(worst, value) : Math.max(worst, value)));
}

function mixOf(engine, item) {
  const counts = new Map();
  for (const id of item.ids) {
    const value = engine.values[overlay.key][id];
    counts.set(value, (counts.get(value) ?? 0) + 1);
  }
  return [...counts].sort((a, b) => b[1] - a[1]);
}

const colourOf = (word) => (PRECISIONS.includes(word) ? `var(--${word})` : "var(--unknown)");
const isCategory = () => overlay?.kind === "category";

// The ends of the scale are those of the boxes that are shown: a folded block may sum to more than any node.
function domain() {
  const shown = scene.items.filter((item) => !item.isOpen);
  const values = engines.flatMap((engine) => shown.map((item) => valueOf(engine, item))).filter((value) => value !== null);
  const low = SUMMED.has(overlay.key) ? 0 : Math.min(...values);
  return values.length ? [low, Math.max(...values)] : [0, 1];
}

let ends = [0, 1];

// Sums differ by orders of magnitude: their square roots spread over the scale.
function strength(value) {
  const part = ends[1] > ends[0] ? (value - ends[0]) / (ends[1] - ends[0]) : 0.5;
  const share = SUMMED.has(overlay.key) ? Math.sqrt(part) : part;
  return Math.round((overlay.bad === "low" ? 1 - share : share) * STEPS) / STEPS;
}

const mixed = (colour, percent) => `color-mix(in srgb, ${colour} ${Math.round(percent)}%, var(--paper))`;

// Text stays on a light tint; the strip at the side of the box has the full colour.
function paintOf(engine, item) {
  if (!overlay) return { back: "var(--paper)", strip: "var(--unknown)", text: "" };
  if (!isCategory()) return paintOfNumber(valueOf(engine, item));
  const mix = mixOf(engine, item);
  const colour = colourOf(mix[0][0]);
  const percent = Math.round((100 * mix[0][1]) / item.ids.length);
  const text = `${mix.length > 1 ? `${percent} % ` : ""}${precisionName(mix[0][0])}`.trim();
  return { back: mixed(colour, mix.length > 1 ? 6 : mix[0][0] ? 17 : 5), strip: colour, text };
}

function paintOfNumber(value) {
  if (value === null) return { back: "var(--paper)", strip: "var(--unknown)", text: "" };
  const part = strength(value);
  return { back: mixed("var(--scale)", 3 + 40 * part), strip: mixed("var(--scale)", 12 + 88 * part), text: withUnit(value, overlay) };
}

// ---- Text

const precisionName = (word) => (word ? word.toUpperCase() : "");
const valueText = (value, shown) => (shown.kind === "category" ? precisionName(value) : withUnit(value, shown));

function figure(value) {
  const size = Math.abs(value);
  if (size && (size < 1e-3 || size >= 1e6)) return value.toExponential(2).replace("-", "\u2212");
  return Number(value.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 6 }).replace("-", "\u2212");
}

function bytes(value) {
  const place = Math.min(4, Math.max(0, Math.floor(Math.log10(Math.max(value, 1)) / 3)));
  return `${figure(value / 1000 ** place)} ${["B", "kB", "MB", "GB", "TB"][place]}`;
}

const withUnit = (value, { unit }) => (unit === "B" || unit === "bytes" ? bytes(value) : `${figure(value)} ${unit ?? ""}`.trim());

const canvas = document.createElement("canvas").getContext("2d");
const family = getComputedStyle(document.body).fontFamily;
const widths = new Map();

function textWidth(text, font) {
  const key = font + text;
  if (!widths.has(key)) {
    canvas.font = `${font} ${family}`;
    widths.set(key, canvas.measureText(text).width);
  }
  return widths.get(key);
}

const BOLD = "600 13px";
const SMALL = "11.5px";

// Names differ at their ends: the middle is left out.
function shorten(text, room, font) {
  if (textWidth(text, font) <= room) return text;
  const parts = Array.from(text);
  let [low, high] = [0, parts.length - 1];
  const cut = (length) => `${parts.slice(0, Math.ceil(length / 2)).join("")}\u2026${parts.slice(parts.length - Math.floor(length / 2)).join("")}`;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (textWidth(cut(middle), font) <= room) low = middle;
    else high = middle - 1;
  }
  return cut(low);
}

// Of "/layer1/conv1/Conv" the box says "conv1", as its blocks and its operator stand there anyhow; where
// several nodes of a block have the same scope, it says "layer1/Conv_2".
function ownName(node) {
  const parts = node.name.split("/").filter(Boolean);
  const scope = scopeOf(node);
  const isShared = node.parent.children.some((other) => other !== node && isNode(other) && scopeOf(other) === scope);
  return scope && !isShared ? scope : parts.slice(-2).join("/") || node.name;
}

function scopeOf({ name, op }) {
  const parts = name.split("/").filter(Boolean);
  return parts.length > 1 && parts.at(-1).replace(/_\d+$/, "") === op ? parts.at(-2) : null;
}

const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
const times = (block) => (block.repeat > 1 ? ` \u00d7${block.repeat}` : "");

function spoken(engine, item) {
  const words = [isNode(item) ? `${item.op} ${item.name}` : `Block ${item.title}${times(item)}, ${plural(item.ids.length, "node")}`];
  const built = isNode(item) && engine.values.built?.[item.id];
  if (built) words.push(precisionName(built));
  if (overlay && isCategory() && (!isNode(item) || overlay.key !== "built")) words.push(mixInWords(engine, item));
  const shown = overlay && !isCategory() ? overlay : overlays.find(({ key }) => key === "loss_db");
  const value = shown ? valueOf(engine, item, shown) : null;
  if (value !== null) words.push(withUnit(value, shown));
  const missed = missedIn(engine, item);
  if (missed) words.push(isNode(item) ? "not built as requested" : `${missed} not built as requested`);
  if (changesIn(item)) words.push("changed");
  if (isNode(item)) words.push(plural(item.inputs.length, "input"));
  return words.filter(Boolean).join(", ");
}

const mixInWords = (engine, item) => mixOf(engine, item).map(([word, count]) => (isNode(item) ? precisionName(word) : `${count} ${precisionName(word) || "not known"}`)).join(", ");
const missedIn = (engine, item) => item.ids.filter((id) => engine.values.missed?.[id]).length;
const isChanged = new Set(changedIds);
const changesIn = (item) => item.ids.filter((id) => isChanged.has(id)).length;

// ---- Drawing: what is near the viewport

let area = null;
let frameAsked = false;

function drawLater() {
  if (frameAsked) return;
  frameAsked = true;
  requestAnimationFrame(() => {
    frameAsked = false;
    if (!isCurrent()) draw();
  });
}

function viewport() {
  const { width, height } = paneSize();
  return { left: -view.x / view.scale, top: -view.y / view.scale, right: (width - view.x) / view.scale, bottom: (height - view.y) / view.scale };
}

function isCurrent() {
  const seen = viewport();
  const isInside = area && area.left <= Math.max(seen.left, 0) && area.top <= Math.max(seen.top, 0)
    && area.right >= Math.min(seen.right, scene.width) && area.bottom >= Math.min(seen.bottom, scene.height);
  return isInside && area.stamp === stamp && area.isFar === isFar()
    && (area.isWhole || (seen.right - seen.left) * 4 > area.right - area.left);
}

function areaToDraw() {
  if (scene.items.length <= DRAWN_IN_FULL) return { left: -Infinity, top: -Infinity, right: Infinity, bottom: Infinity, isWhole: true };
  const { left, top, right, bottom } = viewport();
  const [x, y] = [(right - left) / 2, (bottom - top) / 2];
  return { left: left - x, top: top - y, right: right + x, bottom: bottom + y };
}

const isIn = ({ left, top, right, bottom }, x, y, width, height) => x < right && y < bottom && x + width > left && y + height > top;

function lineIsIn(line) {
  line.bounds ??= boundsOf(line.points);
  return isIn(area, ...line.bounds);
}

function boundsOf(points) {
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  const [x, y] = [Math.min(...xs), Math.min(...ys)];
  return [x, y, Math.max(...xs) - x, Math.max(...ys) - y];
}

function draw() {
  area = { ...areaToDraw(), stamp, isFar: isFar() };
  const items = scene.items.filter((item) => isIn(area, item.x, item.y, item.width, item.height));
  const lines = scene.lines.filter(lineIsIn);
  if (overlay && !isCategory()) ends = domain();
  for (const pane of panes) drawPane(pane, items, lines, items.length > DRAWN_IN_FULL);
  drawLegend();
}

// Of very many boxes only the areas are drawn, one path a colour; the active one stays an element.
function drawPane(pane, items, lines, isMap) {
  if (pane.stamp !== stamp) pane.drawn.clear();
  pane.stamp = stamp;
  const single = isMap ? items.filter((item) => item === active || item === selected) : items;
  const kept = new Map(single.map((item) => [item, pane.drawn.get(item) ?? drawItem(pane, item)]));
  const hadFocus = pane.svg.contains(document.activeElement);
  pane.drawn = kept;
  pane.frames.replaceChildren(...single.filter((item) => item.isOpen).map((item) => kept.get(item)));
  pane.boxes.replaceChildren(...single.filter((item) => !item.isOpen).map((item) => kept.get(item)));
  pane.map.replaceChildren(...(isMap ? drawMap(pane.engine, items) : []));
  pane.hulls.replaceChildren(...(isMap ? [] : drawHulls(pane.engine, items, lines)));
  pane.lines.replaceChildren(...drawLines(lines, isMap));
  pane.marks.replaceChildren(...(isMap ? [] : [...drawCopies(pane, lines), ...items.flatMap((item) => drawBadges(pane.engine, item))]));
  if (hadFocus) pane.drawn.get(active)?.focus({ preventScroll: true });
}

const rectangle = (x, y, width, height) => `M${x} ${y}h${width}v${height}h${-width}z`;

function drawMap(engine, items) {
  const frames = items.filter((item) => item.isOpen).map((item) => rectangle(item.x, item.y, item.width, item.height));
  const paths = new Map();
  for (const item of items.filter((shown) => !shown.isOpen)) {
    const { strip } = paintOf(engine, item);
    paths.set(strip, (paths.get(strip) ?? "") + rectangle(item.x, item.y, item.width, item.height));
  }
  const filled = [...paths].map(([colour, d]) => {
    const path = shape("path", { d });
    path.style.fill = colour;
    return path;
  });
  return [shape("g", { class: "frame" }, shape("path", { class: "back", d: frames.join("") })), ...filled];
}

function drawItem(pane, item) {
  const drawing = shape("g", { class: item.isOpen ? "box frame" : "box", transform: `translate(${item.x} ${item.y})`, role: "button", tabindex: item === active ? 0 : -1 });
  const about = spoken(pane.engine, item);
  drawing.setAttribute("aria-label", about);
  if (!isNode(item)) drawing.setAttribute("aria-expanded", item.isOpen);
  drawing.classList.toggle("selected", item === selected);
  drawing.append(shape("title", {}, about));
  drawing.append(...(item.isOpen ? drawFrame(item) : drawBox(pane.engine, item)));
  itemOf.set(drawing, item);
  return drawing;
}

const itemOf = new WeakMap();

function drawFrame({ title, repeat, ids, width, height }) {
  const about = plural(ids.length, "node");
  const name = repeat > 1 ? `${title} \u00d7${repeat}` : title;
  const room = width - 48 - textWidth(about, SMALL);
  return [
    shape("rect", { class: "back", width, height, rx: 12 }),
    shape("path", { class: "fold", d: "M14 17h9" }),
    label(30, 21, "title", shorten(name, Math.max(room - 10, 40), BOLD)),
    ...(room > 60 ? [shape("text", { x: width - 12, y: 21, class: "value" }, about)] : []),
  ];
}

function drawBox(engine, item) {
  const { back, strip, text } = paintOf(engine, item);
  const { width, height } = item;
  const valueWidth = text ? textWidth(text, SMALL) + 10 : 0;
  const head = isNode(item) ? item.op : item.title;
  const repeat = isNode(item) ? "" : times(item);
  const room = width - 26 - valueWidth - (repeat ? textWidth(repeat, BOLD) : 0);
  const rect = shape("rect", { class: "back", width, height, rx: roundness(item) });
  rect.style.fill = back;
  const side = shape("rect", { class: "strip", x: 5, y: 7, width: 4, height: height - 14, rx: 2 });
  side.style.fill = strip;
  return [
    ...(isNode(item) ? [] : [shape("rect", { class: "behind", x: 5, y: 5, width: width - 5, height, rx: 8 })]),
    rect, side,
    label(16, 19, "title", shorten(head, room, BOLD) + repeat),
    ...(text ? [label(width - 10, 19, "value", text)] : []),
    ...(isNode(item) ? [label(16, 36, "name", shorten(ownName(item), width - 28, SMALL))] : drawSummary(engine, item)),
  ];
}

function roundness(item) {
  if (!isNode(item)) return 8;
  return item.op === "Input" || item.op === "Output" ? NODE.height / 2 : 6;
}

function drawSummary(engine, item) {
  const about = [shape("path", { class: "fold", d: "M16 32h8m-4 -4v8" }), label(30, 36, "about", plural(item.ids.length, "node"))];
  return overlay && isCategory() ? [...about, ...drawMix(engine, item)] : about;
}

function drawMix(engine, item) {
  let left = 16;
  const room = (item.width - 28) / item.ids.length;
  return mixOf(engine, item).map(([word, count]) => {
    const part = shape("rect", { class: "part", x: left, y: 46, width: Math.max(count * room - 1, 0.5), height: 7, rx: 1 });
    part.style.fill = colourOf(word);
    left += count * room;
    return part;
  });
}

// ---- Lines, one path a precision

const precisionOf = ({ edges }) => (edges.every(({ precision }) => precision === edges[0].precision) ? edges[0].precision : "mixed");

// Between two points a line leaves and arrives upright, as the layers lie one below the other.
function curve(points) {
  const bend = ([x, y], [u, v]) => (x === u ? `V${v}` : `C${x} ${(y + v) / 2} ${u} ${(y + v) / 2} ${u} ${v}`);
  return `M${points[0]}${points.slice(1).map((point, at) => bend(points[at], point)).join("")}`;
}

const curveOf = (line) => (line.curve ??= curve(line.points));

function head(points) {
  const [x, y] = points.at(-1);
  const back = y >= points.at(-2)[1] ? -7 : 7;
  return `M${x} ${y}l-3.5 ${back}h7z`;
}

function drawLines(lines, isMap) {
  const kinds = new Map();
  const near = lines.filter((line) => selected && (line.from === selected || line.to === selected));
  for (const line of lines) {
    const kind = precisionOf(line);
    if (!kinds.has(kind)) kinds.set(kind, []);
    kinds.get(kind).push(line);
  }
  const drawn = [...kinds].flatMap(([kind, own]) => drawKind(kind, own, isMap));
  return near.length ? [...drawn, shape("path", { class: "near", d: near.map(curveOf).join("") })] : drawn;
}

function drawKind(kind, lines, isMap) {
  const path = shape("path", { class: `line dash-${PRECISIONS.includes(kind) || kind === "mixed" ? kind : "none"}`, d: lines.map(curveOf).join("") });
  const heads = shape("path", { class: "heads", d: isMap ? "" : lines.filter(({ to }) => to !== OUTPUT).map(({ points }) => head(points)).join("") });
  for (const one of [path, heads]) one.style.setProperty("--tone", colourOf(kind));
  return [path, heads];
}

// ---- Marks: fused layers, float islands, copies, and what is not as requested or not as it was

// A thick outline around the nodes and the lines between them, and a thinner one over it: the edge of both together.
function drawHull(css, nodesOf, lines, reach) {
  const own = new Set(nodesOf);
  const rects = nodesOf.map((node) => rectangle(node.x, node.y, node.width, node.height)).join("");
  const links = lines.filter((line) => own.has(line.from) && own.has(line.to)).map(curveOf).join("");
  const layer = (kind, width) => [
    shape("path", { class: kind, d: rects, "stroke-width": width }),
    shape("path", { class: kind, d: links, "stroke-width": width, fill: "none" }),
  ];
  const drawing = shape("g", { class: css }, ...layer("edge", 2 * reach), ...layer("fill", 2 * reach - 3));
  for (const path of drawing.children) if (path.getAttribute("fill")) path.style.fill = "none";
  return drawing;
}

function members(groups, items) {
  const shown = new Set(items);
  const visible = groups.map((ids) => ids.map((id) => nodes[id]).filter((node) => shown.has(node)));
  return visible.flatMap((own) => [...Map.groupBy(own, (node) => node.parent).values()]);
}

function drawHulls(engine, items, lines) {
  const islands = members(engine.islands, items).map((own) => {
    const drawing = drawHull("island", own, lines, 12);
    const first = own.reduce((top, node) => (node.y < top.y ? node : top));
    drawing.append(label(first.x - 4, first.y - 16, "about", "float island"));
    return drawing;
  });
  const fused = members(engine.layers.map((layer) => layer.nodes), items).filter((own) => own.length > 1);
  return [...islands, ...fused.map((own) => drawHull("layer", own, lines, 7))];
}

function drawCopies(pane, lines) {
  return lines.flatMap((line) => {
    const own = line.edges.flatMap((edge) => pane.copies.get(`${edge.from.id}>${edge.to.id}`) ?? []);
    if (!own.length || line.from === INPUT || line.to === OUTPUT) return [];
    const [x, y] = midpoint(line.points);
    const text = own.map(aboutCopy).join("\n");
    return [shape("path", { class: "copy", d: `M${x} ${y - 7}l7 7l-7 7l-7 -7z` }, shape("title", {}, text))];
  });
}

function aboutCopy({ title, ms, bytes: size }) {
  const figures = [ms === null || ms === undefined ? null : `${figure(ms)} ms`, size === null || size === undefined ? null : bytes(size)];
  return [`Reformat copy ${title}`, ...figures.filter(Boolean)].join(", ");
}

function midpoint(points) {
  const [x, y] = points[Math.floor((points.length - 1) / 2)];
  const [u, v] = points[Math.ceil((points.length - 1) / 2)];
  return [(x + u) / 2, (y + v) / 2];
}

function drawBadges(engine, item) {
  if (item.isOpen) return [];
  const [missed, changed] = [missedIn(engine, item), changesIn(item)];
  const at = (x) => ({ transform: `translate(${x} ${item.y - 3})` });
  const count = (number) => (isNode(item) || number < 2 ? "" : number > 99 ? "99+" : String(number));
  const drawing = [];
  if (missed) drawing.push(shape("g", { class: "badge missed", ...at(item.x + item.width - 6) }, shape("circle", { r: 9 }), label(0, 3.8, "", count(missed) || "!")));
  if (changed) drawing.push(shape("g", { class: "badge change", ...at(item.x + 12) }, shape("rect", { x: -14, y: -8, width: 28, height: 16, rx: 8 }), label(0, 3.8, "", `\u0394${count(changed)}`)));
  return drawing;
}

// ---- Legend

const swatch = (colour, ...inside) => {
  const box = shape("rect", { width: 14, height: 14, rx: 3, y: 1 });
  box.style.fill = colour;
  return shape("svg", { width: 14, height: 16, "aria-hidden": "true" }, box, ...inside);
};

function drawLegend() {
  const items = overlay ? (isCategory() ? categories() : scale()) : [];
  const title = overlay ? [element("strong", {}, overlay.title)] : [];
  byId("legend-items").replaceChildren(...title, ...items, ...lineKinds(), ...markKinds());
}

function categories() {
  const words = new Set(engines.flatMap((engine) => engine.values[overlay.key]));
  const known = [...PRECISIONS, ...words].filter((word, at, all) => words.has(word) && all.indexOf(word) === at);
  return known.map((word) => element("span", {}, swatch(colourOf(word)), precisionName(word) || "not known"));
}

function scale() {
  const ramp = element("span", { className: "ramp" });
  const stops = [0, 0.25, 0.5, 0.75, 1].map((part) => mixed("var(--scale)", 12 + 88 * strength(ends[0] + part * (ends[1] - ends[0]))));
  ramp.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  const worse = overlay.bad === "low" ? "low is worse" : overlay.bad ? "high is worse" : null;
  const note = [SUMMED.has(overlay.key) ? "a block is the sum of its nodes" : "a block is its worst node", worse].filter(Boolean).join("; ");
  return [element("span", {}, withUnit(ends[0], overlay), ramp, withUnit(ends[1], overlay)), element("span", {}, swatch("var(--unknown)"), "no value"), element("span", {}, `(${note})`)];
}

function lineKinds() {
  const kinds = new Set(graph.edges.map(([, , , precision]) => precision).filter(Boolean));
  return [...PRECISIONS.filter((kind) => kinds.has(kind)), ...(kinds.size > 1 ? ["mixed"] : [])].map((kind) => {
    const path = shape("path", { d: "M0 8h30", class: `line dash-${kind}` });
    const drawn = shape("svg", { width: 30, height: 16, class: "lines", "aria-hidden": "true" }, path);
    path.style.setProperty("--tone", colourOf(kind));
    return element("span", {}, drawn, kind === "mixed" ? "several" : `${precisionName(kind)} tensor`);
  });
}

function markKinds() {
  const has = (test) => engines.some(test);
  const mark = (...inside) => shape("svg", { width: 22, height: 18, viewBox: "-11 -9 22 18", class: "key", "aria-hidden": "true" }, ...inside);
  const hull = (css) => mark(shape("g", { class: css }, shape("rect", { x: -9, y: -6, width: 18, height: 12, rx: 4 })));
  return [
    [has(({ layers }) => layers.some((layer) => layer.nodes.length > 1)), hull("layer"), "fused layer"],
    [has(({ islands }) => islands.length), hull("island"), "float island"],
    [has(({ copies }) => copies.length), mark(shape("path", { class: "copy", d: "M0 -7l7 7l-7 7l-7 -7z" })), "reformat copy"],
    [has(({ values }) => values.missed?.some(Boolean)), mark(shape("g", { class: "badge" }, shape("circle", { r: 8 }), label(0, 3.8, "", "!"))), "not built as requested"],
    [changedIds.length, mark(shape("g", { class: "badge change" }, shape("rect", { x: -10, y: -8, width: 20, height: 16, rx: 8 }), label(0, 3.8, "", "\u0394"))), "changed"],
  ].filter(([isThere]) => isThere).map(([, drawn, text]) => element("span", {}, drawn, text));
}
