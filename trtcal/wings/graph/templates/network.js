// The network as a graph: every block is laid out by itself, so that each layout is small, and a scene
// puts together the layouts of the blocks that are unfolded. Data are set as text only, never as markup.
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
const SUMMED = new Set(["ms", "bytes", "macs", "share", "findings", "missed"]);
const PRECISIONS = ["fp32", "tf32", "fp16", "bf16", "int8", "fp8", "int4", "nvfp4"];
const STEPS = 12;

const graph = JSON.parse(document.getElementById("graph").textContent);
const { engines, overlays, changes } = graph;
const changedIds = Object.keys(changes ?? {}).map(Number).sort((a, b) => a - b);
const byId = (id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)");

// ---- Elements

function element(tag, properties = {}, ...children) {
  const drawing = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) drawing.addEventListener(name.slice(2), value);
    else if (name in drawing && !name.includes("-")) drawing[name] = value;
    else drawing.setAttribute(name, value);
  }
  drawing.append(...children.filter((child) => child !== null && child !== undefined));
  return drawing;
}

function shape(tag, attributes = {}, ...children) {
  const drawing = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) drawing.setAttribute(name, value);
  drawing.append(...children);
  return drawing;
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
    if (link.to === OUTPUT) points.at(-1)[1] = block.y + block.height;
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
