// The radix tree: one column a level, a node's area for its tokens, its colour for its last use.

const NS = "http://www.w3.org/2000/svg";
const COLUMN = 96;
const ROW = 26;
const MARGIN = 22;

function element(name, attributes, parent) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

export const radius = (tokens) => Math.min(4 + Math.sqrt(tokens) / 2.2, 20);
const colour = (age) => `hsl(${12 + 200 * age} ${80 - 25 * age}% ${55 + 7 * age}%)`;

// Sets x and y of each node: leaves below each other, parents in the middle of their children.
export function layout(nodes) {
  const children = nodes.map(() => []);
  const roots = [];
  nodes.forEach((node, at) => (node.parent < 0 ? roots : children[node.parent]).push(at));
  let row = 0;
  const visit = [...roots].reverse().map((at) => [at, 0, false]);
  while (visit.length) {
    const [at, depth, seen] = visit.pop();
    const below = children[at];
    nodes[at].x = MARGIN + depth * COLUMN;
    if (!below.length) nodes[at].y = MARGIN + row++ * ROW;
    else if (seen) nodes[at].y = (nodes[below[0]].y + nodes[below.at(-1)].y) / 2;
    else {
      visit.push([at, depth, true]);
      for (const child of [...below].reverse()) visit.push([child, depth + 1, false]);
    }
  }
  return row;
}

export function drawTree(svg, tree, onNode) {
  const { nodes } = tree;
  const rows = layout(nodes);
  svg.replaceChildren();
  const width = Math.max(200, ...nodes.map((node) => node.x + COLUMN));
  svg.setAttribute("width", width);
  svg.setAttribute("height", Math.max(40, 2 * MARGIN + rows * ROW));
  for (const node of nodes) {
    if (node.parent < 0) continue;
    const from = nodes[node.parent];
    const middle = (from.x + node.x) / 2;
    const path = `M${from.x},${from.y} C${middle},${from.y} ${middle},${node.y} ${node.x},${node.y}`;
    element("path", { class: "edge", d: path }, svg);
  }
  for (const node of nodes) {
    const look = node.locks ? "node locked" : "node";
    const circle = element("circle", {
      class: look, cx: node.x, cy: node.y, r: radius(node.num_tokens), fill: colour(node.age), tabindex: 0,
    }, svg);
    const label = element("text", { x: node.x + radius(node.num_tokens) + 3, y: node.y + 3 }, svg);
    label.textContent = node.num_tokens;
    for (const event of ["pointerenter", "focus"]) circle.addEventListener(event, () => onNode(node));
  }
}
