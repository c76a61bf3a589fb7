// The network as a graph: every block is laid out by itself, so that each layout is small, and a scene
// puts together the layouts of the blocks that are unfolded. Data are set as text only, never as markup.
{
  const NODE = { width: 184, height: 46 };
  const BLOCK = { width: 208, height: 62 };
  const PORT = { width: 10, height: 2 };
  const PAD = 18;
  const HEAD = 34;
  const SHOWN_AT_START = 60;
  const DRAWN_IN_FULL = 400;
  const UNFOLDED_LIMIT = 2000;
  const ROWS_SHOWN = 200;
  const RESULTS_SHOWN = 50;
  const SLICE_MS = 40;
  const DRAG_PX = 5;
  const SMALLEST_FIT = 0.1;
  const LEGIBLE = 0.8;
  const SUMMED = new Set(["ms", "bytes", "macs", "share", "findings"]);
  const PRECISIONS = ["fp32", "tf32", "fp16", "bf16", "int8", "fp8", "int4", "nvfp4"];
  const STEPS = 12;

  const graph = JSON.parse(document.getElementById("graph").textContent);
  const { engines, overlays, changes } = graph;
  const changedIds = Object.keys(changes ?? {}).map(Number).sort((a, b) => a - b);
  const byId = (id) => document.getElementById(id);
  const calm = matchMedia("(prefers-reduced-motion: reduce)");

  // ---- Elements

  function element(tag, properties = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (name in made && !name.includes("-")) made[name] = value;
      else made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  function shape(tag, attributes = {}, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  const label = (x, y, css, text) => shape("text", { x, y, class: css }, text);

  // ---- The network: nodes in blocks; each block knows its children and the links between them

  const INPUT = { key: "in" };
  const OUTPUT = { key: "out" };
  const nodes = graph.nodes.name.map((name, id) => ({
    key: `n${id}`, id, name, op: graph.nodes.op[id], shape: graph.nodes.shape[id], ids: [id], inputs: [], outputs: [],
  }));
  const blocks = graph.blocks.map(({ title, repeat }, id) => ({
    key: `b${id}`, title, repeat, children: [], ids: [], links: new Map(), isOpen: false,
  }));
  const root = { key: "top", title: "The whole network", children: [], ids: [], links: new Map(), isOpen: true, parent: null };

  const blockAt = (index) => blocks[index] ?? root;
  const isNode = (item) => item.op !== undefined;

  function* above(item) {
    for (let block = item.parent; block; block = block.parent) yield block;
  }

  function addLink(block, from, to, edge) {
    const key = `${from.key}>${to.key}`;
    const link = block.links.get(key) ?? { from, to, edges: [] };
    link.edges.push(edge);
    block.links.set(key, link);
  }

  // An edge between blocks is a link in each block that it leaves or enters, and one where both meet.
  function addEdge([from, to, dims, precision]) {
    const edge = { from: nodes[from], to: nodes[to], dims, precision };
    edge.from.outputs.push(edge);
    edge.to.inputs.push(edge);
    const around = new Set(above(edge.from));
    let [source, target] = [edge.from, edge.to];
    for (; !around.has(target.parent); target = target.parent) addLink(target.parent, INPUT, target, edge);
    for (; source.parent !== target.parent; source = source.parent) addLink(source.parent, source, OUTPUT, edge);
    if (source !== target) addLink(source.parent, source, target, edge);
  }

  function buildNetwork() {
    graph.blocks.forEach(({ parent }, id) => { blocks[id].parent = blockAt(parent); });
    const placed = new Set([root]);
    for (const node of nodes) {
      node.parent = blockAt(graph.nodes.block[node.id]);
      let child = node;
      for (const block of above(node)) {
        block.ids.push(node.id);
        if (!placed.has(child)) block.children.push(child);
        placed.add(child);
        child = block;
      }
    }
    graph.edges.forEach(addEdge);
  }

  // Blocks are unfolded from the outside in, those of a repeated structure all or none.
  function unfoldFirst() {
    let count = root.children.length;
    let level = [root];
    while (level.length) {
      const next = [];
      for (const block of level) {
        const inner = block.children.filter((child) => !isNode(child));
        const batches = block.repeat > 1 ? [inner] : inner.map((child) => [child]);
        for (const batch of batches) {
          const added = batch.reduce((sum, child) => sum + child.children.length - 1, 0);
          if (count + added > SHOWN_AT_START) continue;
          count += added;
          for (const child of batch) child.isOpen = true;
          next.push(...batch);
        }
      }
      level = next;
    }
  }

  // ---- Layout of one block by dagre; equal blocks share theirs

  const layouts = new Map();

  function sizeOf(item) {
    if (isNode(item)) return NODE;
    if (!item.isOpen) return BLOCK;
    return { width: item.layout.width + 2 * PAD, height: item.layout.height + HEAD + PAD };
  }

  // Places in a layout are numbers of children, so that the layout fits any block of the same structure.
  function layOut(block) {
    const place = new Map([[INPUT, "in"], [OUTPUT, "out"], ...block.children.map((child, at) => [child, String(at)])]);
    const sizes = block.children.map(sizeOf);
    const pairs = Array.from(block.links.values(), ({ from, to }) => [place.get(from), place.get(to)]);
    const key = JSON.stringify([sizes.map(({ width, height }) => [width, height]), pairs]);
    if (!layouts.has(key)) layouts.set(key, arrange(sizes, pairs));
    block.layout = layouts.get(key);
  }

  function arrange(sizes, pairs) {
    const plan = new dagre.graphlib.Graph();
    plan.setGraph({ rankdir: "TB", nodesep: 30, edgesep: 16, ranksep: 40, ranker: sizes.length > 40 ? "tight-tree" : "network-simplex" });
    sizes.forEach(({ width, height }, at) => plan.setNode(String(at), { width, height }));
    for (const port of ["in", "out"]) if (pairs.some((pair) => pair.includes(port))) plan.setNode(port, { ...PORT });
    for (const [from, to] of pairs) plan.setEdge(from, to, { weight: from === "in" || to === "out" ? 1 : 3 });
    dagre.layout(plan);
    const { width, height } = plan.graph();
    const places = sizes.map((size, at) => ({ x: plan.node(String(at)).x - size.width / 2, y: plan.node(String(at)).y - size.height / 2 }));
    const middle = (port) => plan.node(port)?.x ?? width / 2;
    return { width, height, places, ports: { in: middle("in"), out: middle("out") }, points: pairs.map(([from, to]) => plan.edge(from, to).points) };
  }

  function* openBlocks(block) {
    for (const child of block.children) if (child.isOpen) yield* openBlocks(child);
    yield block;
  }

  function layOutAll() {
    for (const block of openBlocks(root)) layOut(block);
  }

  const pause = () => new Promise((resume) => setTimeout(resume));

  // The page stays responsive while many blocks are laid out.
  async function layOutInSlices() {
    let start = performance.now();
    for (const block of openBlocks(root)) {
      layOut(block);
      if (performance.now() - start < SLICE_MS) continue;
      await pause();
      start = performance.now();
    }
  }

  // ---- The scene: every box and line that is unfolded, in pixels of the drawing

  let scene = { items: [], lines: [], width: 0, height: 0 };

  function compose(block, left, top, into) {
    block.children.forEach((child, at) => {
      const { x, y } = block.layout.places[at];
      Object.assign(child, { x: left + x, y: top + y, scene: into }, sizeOf(child));
      into.items.push(child);
      if (child.isOpen) compose(child, child.x + PAD, child.y + HEAD, into);
    });
    Array.from(block.links.values()).forEach((link, at) => {
      const points = block.layout.points[at].map(({ x, y }) => [x + left, y + top]);
      into.lines.push({ ...link, block, points: attach(link, points) });
    });
  }

  // A line leaves a box at its lower border and enters one at its upper border, unless it goes back; at an
  // unfolded block it ends where the block's own lines begin.
  function attach({ from, to }, points) {
    const isDown = points.at(-1)[1] >= points[0][1];
    const middle = points.length > 3 ? points.slice(1, -1) : [];
    let [first, last] = [points[0], points.at(-1)];
    if (from !== INPUT) first = [borderX(from, (middle[0] ?? centreOf(to, last))[0], "out"), isDown ? from.y + from.height : from.y];
    if (to !== OUTPUT) last = [borderX(to, (middle.at(-1) ?? first)[0], "in"), isDown ? to.y : to.y + to.height];
    return [first, ...middle, last];
  }

  const centreOf = ({ x, width }, point) => (x === undefined ? point : [x + width / 2]);

  function borderX(item, x, port) {
    if (item.isOpen) return item.x + PAD + item.layout.ports[port];
    return Math.min(Math.max(x, item.x + 20), item.x + item.width - 20);
  }

  function rebuildScene() {
    scene = { items: [], lines: [], width: root.layout.width, height: root.layout.height };
    compose(root, 0, 0, scene);
    for (const item of scene.items) item.near = [];
    for (const line of scene.lines) for (const end of [line.from, line.to]) end.near?.push(line);
    stamp += 1;
  }

  const isShown = (item) => item.scene === scene;
  const shownFor = (item) => [...above(item)].reverse().find((block) => !block.isOpen) ?? item;

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

  function moveView(x, y, scale) {
    cancelAnimationFrame(motion);
    if (calm.matches || document.hidden) return setView(x, y, scale);
    const from = { ...view };
    const start = performance.now();
    const step = (now) => {
      const part = Math.min(1, Math.max(0, (now - start) / 220));
      const eased = 1 - (1 - part) ** 3;
      const between = (a, b) => a + (b - a) * eased;
      setView(between(from.x, x), between(from.y, y), between(from.scale, scale));
      if (part < 1) motion = requestAnimationFrame(step);
    };
    motion = requestAnimationFrame(step);
  }

  function zoomAt(px, py, factor) {
    cancelAnimationFrame(motion);
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
    moveView(width / 2 - (item.x + item.width / 2) * scale, height / 2 - y * scale, scale);
  }

  function reveal(item) {
    const { width, height } = freeSize();
    const [left, top] = [view.x + item.x * view.scale, view.y + item.y * view.scale];
    const bottom = top + Math.min(item.height, HEAD) * view.scale;
    if (left < 8 || top < 8 || left + item.width * view.scale > width - 8 || bottom > height - 8 || isFar()) centre(item);
  }

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
    return area && area.stamp === stamp && area.isFar === isFar() && area.left <= seen.left && area.top <= seen.top && area.right >= seen.right && area.bottom >= seen.bottom
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
    const wanted = isMap ? items.filter((item) => item === active || item === selected) : items;
    const kept = new Map(wanted.map((item) => [item, pane.drawn.get(item) ?? drawItem(pane, item)]));
    const hadFocus = pane.svg.contains(document.activeElement);
    pane.drawn = kept;
    pane.frames.replaceChildren(...wanted.filter((item) => item.isOpen).map((item) => kept.get(item)));
    pane.boxes.replaceChildren(...wanted.filter((item) => !item.isOpen).map((item) => kept.get(item)));
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
    const made = shape("g", { class: item.isOpen ? "box frame" : "box", transform: `translate(${item.x} ${item.y})`, role: "button", tabindex: item === active ? 0 : -1 });
    made.setAttribute("aria-label", spoken(pane.engine, item));
    if (!isNode(item)) made.setAttribute("aria-expanded", item.isOpen);
    made.classList.toggle("selected", item === selected);
    made.append(shape("title", {}, spoken(pane.engine, item)));
    made.append(...(item.isOpen ? drawFrame(item) : drawBox(pane.engine, item)));
    itemOf.set(made, item);
    return made;
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
    return near.length ? [...drawn, shape("path", { class: "near", d: near.map(({ points }) => curve(points)).join("") })] : drawn;
  }

  function drawKind(kind, lines, isMap) {
    const path = shape("path", { class: `line dash-${PRECISIONS.includes(kind) || kind === "mixed" ? kind : "none"}`, d: lines.map(({ points }) => curve(points)).join("") });
    const heads = shape("path", { class: "heads", d: isMap ? "" : lines.filter(({ to }) => to !== OUTPUT).map(({ points }) => head(points)).join("") });
    for (const one of [path, heads]) one.style.setProperty("--tone", colourOf(kind));
    return [path, heads];
  }

  // ---- Marks: fused layers, float islands, copies, and what is not as requested or not as it was

  // A thick outline around the nodes and the lines between them, and a thinner one over it: the edge of both together.
  function drawHull(css, nodesOf, lines, reach) {
    const own = new Set(nodesOf);
    const rects = nodesOf.map((node) => rectangle(node.x, node.y, node.width, node.height)).join("");
    const links = lines.filter((line) => own.has(line.from) && own.has(line.to)).map(({ points }) => curve(points)).join("");
    const layer = (kind, width) => [
      shape("path", { class: kind, d: rects, "stroke-width": width }),
      shape("path", { class: kind, d: links, "stroke-width": width, fill: "none" }),
    ];
    const made = shape("g", { class: css }, ...layer("edge", 2 * reach), ...layer("fill", 2 * reach - 3));
    for (const path of made.children) if (path.getAttribute("fill")) path.style.fill = "none";
    return made;
  }

  function members(groups, items) {
    const shown = new Set(items);
    const visible = groups.map((ids) => ids.map((id) => nodes[id]).filter((node) => shown.has(node)));
    return visible.flatMap((own) => [...Map.groupBy(own, (node) => node.parent).values()]);
  }

  function drawHulls(engine, items, lines) {
    const islands = members(engine.islands, items).map((own) => {
      const made = drawHull("island", own, lines, 12);
      const first = own.reduce((top, node) => (node.y < top.y ? node : top));
      made.append(label(first.x - 4, first.y - 16, "about", "float island"));
      return made;
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
    const at = (x) => ({ transform: `translate(${x} ${item.y})` });
    const count = (number) => (isNode(item) || number < 2 ? "" : number > 99 ? "99+" : String(number));
    const made = [];
    if (missed) made.push(shape("g", { class: "badge missed", ...at(item.x + item.width - 6) }, shape("circle", { r: 9 }), label(0, 3.8, "", count(missed) || "!")));
    if (changed) made.push(shape("g", { class: "badge change", ...at(item.x + 12) }, shape("rect", { x: -14, y: -8, width: 28, height: 16, rx: 8 }), label(0, 3.8, "", `\u0394${count(changed)}`)));
    return made;
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
    return [...PRECISIONS.filter((kind) => kinds.has(kind)), "mixed"].map((kind) => {
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
      for (const [shown, made] of pane.drawn) made.classList.toggle("selected", shown === item);
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
  function along(item, isDown) {
    if (isDown && item.isOpen) return item.children.find((child) => child.near.some(({ from }) => from === INPUT)) ?? item.children[0];
    const [own, other] = isDown ? ["from", "to"] : ["to", "from"];
    const ends = item.near.filter((line) => line[own] === item).map((line) => line[other]);
    const inside = ends.filter((end) => end !== INPUT && end !== OUTPUT);
    inside.sort((a, b) => Math.abs(a.y - item.y) - Math.abs(b.y - item.y) || a.x - b.x);
    if (inside.length) return inside[0];
    if (item.parent === root || !item.parent) return null;
    return isDown ? next(item.parent) : item.parent;
  }

  const next = (block) => along({ ...block, near: block.near.map((line) => ({ ...line, from: line.from === block ? block : line.from })), isOpen: false, parent: block.parent }, true);

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
    const made = event.target.closest?.(".box");
    if (made) return itemOf.get(made);
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
    const facts = [...(card?.facts ?? []), ...own.map(({ title, nodes: ids }) => ["Fused layer", `${title} (${plural(ids.length, "node")})`])];
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
    const made = shape("svg", { class: "histogram", viewBox: `-1 0 ${width + 2} ${height + 2}`, role: "img", "aria-label": text }, ...drawn, ...marks);
    return [element("h3", {}, "Values (log count)"), made, element("p", { className: "name" }, text)];
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
      ...shown.map(([title, engine, one]) => ({ title: one.unit ? `${title}, ${one.unit}` : title, isNumber: one.kind === "number", value: ({ id }) => engine.values[one.key][id] })),
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
    const made = element("table", {}, element("caption", { className: "hidden" }, `Nodes of ${tabled.title}`),
      element("thead", {}, element("tr", {}, ...heads.map(tableHead))), element("tbody", {}, ...rows.slice(0, ROWS_SHOWN).map((node) => tableRow(node, heads))));
    const about = rows.length > ROWS_SHOWN ? `The first ${ROWS_SHOWN} of ${plural(rows.length, "node")} in this order.` : plural(rows.length, "node");
    byId("table").replaceChildren(element("p", { className: "about" }, blockChoice(), about), made);
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
    let wanted = name;
    try { wanted = decodeURIComponent(name); } catch { /* not encoded: taken as it is */ }
    const node = nodes.find((one) => one.name === wanted);
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
}
