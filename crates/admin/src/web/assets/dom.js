// Builds and updates the page. `h` describes an element, `render` makes a part of the page look like
// its description and touches only what differs, so that a refresh keeps focus, selection, scroll
// positions and what was opened or typed.
//
// Everything shown may come from strangers. It becomes text nodes and plain attributes, never markup:
// there is no way through this file to set HTML, a script, a style sheet or a link that leaves the page.

const SVG = "http://www.w3.org/2000/svg";
const TEXT = "#text";

/** Describes an element. Children may be nested arrays; null, false and undefined are left out. */
export function h(tag, props, ...children) {
  return { tag, props: props ?? {}, key: props?.key ?? null, children: describe(children), node: null };
}

function describe(children) {
  return children.flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false && child !== "")
    .map((child) => typeof child === "object"
      ? child
      : { tag: TEXT, props: {}, key: null, children: [], text: String(child), node: null });
}

/** Makes the content of `container` what `children` describe. */
export function render(container, ...children) {
  const wanted = describe(children);
  if (!container.shown) container.replaceChildren();
  patchChildren(container, container.shown ?? [], wanted, container.namespaceURI === SVG);
  container.shown = wanted;
}

function create(wanted, inSvg) {
  if (wanted.tag === TEXT) {
    wanted.node = document.createTextNode(wanted.text);
    return;
  }
  const svg = inSvg || wanted.tag === "svg";
  const node = svg ? document.createElementNS(SVG, wanted.tag) : document.createElement(wanted.tag);
  wanted.node = node;
  // Children come first: a select can only take its value once it has its options.
  patchChildren(node, [], wanted.children, svg);
  for (const [name, value] of Object.entries(wanted.props)) set(node, name, value);
}

function patch(was, wanted, inSvg) {
  const node = wanted.node = was.node;
  if (wanted.tag === TEXT) {
    if (was.text !== wanted.text) node.data = wanted.text;
    return;
  }
  patchChildren(node, was.children, wanted.children, inSvg || wanted.tag === "svg");
  for (const name of Object.keys(was.props)) {
    if (!(name in wanted.props)) set(node, name, null);
  }
  for (const [name, value] of Object.entries(wanted.props)) {
    if (typeof value === "object" || value !== was.props[name]) set(node, name, value);
  }
}

function patchChildren(parent, was, wanted, inSvg) {
  const keyed = new Map();
  const rest = [];
  for (const child of was) {
    if (child.key === null) rest.push(child);
    else keyed.set(child.key, child);
  }
  const kept = new Set();
  let place = 0;
  for (const child of wanted) {
    const old = child.key === null ? rest[place++] : keyed.get(child.key);
    if (old && old.tag === child.tag && !kept.has(old)) {
      kept.add(old);
      patch(old, child, inSvg);
    } else {
      create(child, inSvg);
    }
  }
  for (const old of was) {
    if (!kept.has(old)) old.node.remove();
  }
  // Only what is out of place is moved: moving an element would take the focus from it.
  let next = parent.firstChild;
  for (const child of wanted) {
    if (child.node === next) next = next.nextSibling;
    else parent.insertBefore(child.node, next);
  }
}

const LIVE = new Set(["value", "checked", "open", "indeterminate"]);

function set(node, name, value) {
  if (name === "key") return;
  if (name === "style") {
    for (const [property, setting] of Object.entries(value ?? {})) node.style.setProperty(property, setting);
    return;
  }
  if (name.startsWith("on")) {
    if (value && typeof value !== "function") throw new TypeError(`${name} must be a function`);
    node[name] = value ?? null;
    return;
  }
  if (LIVE.has(name)) {
    // What somebody is typing is theirs.
    if (node !== document.activeElement || name !== "value") node[name] = value ?? (name === "value" ? "" : false);
    return;
  }
  if (name === "href" && value !== null && !String(value).startsWith("#")) {
    throw new TypeError("links stay on this page");
  }
  if (["src", "srcdoc", "action", "formaction", "xlink:href"].includes(name)) {
    throw new TypeError(`${name} is not set from here`);
  }
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : String(value));
}
