// Helpers for the document that every panel uses.

const SVG = "http://www.w3.org/2000/svg";

export const SLICE_MS = 8; // what a task may compute before the browser may draw

export function find(id) {
  return document.getElementById(id);
}

/** An element with properties and children: `make("button", { className: "quiet" }, "Copy")`. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** An element of SVG with attributes and children. */
export function shape(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** The drawing `i-NAME` of index.html, hidden from screen readers: the button around it has an aria-label. */
export function icon(name) {
  return shape("svg", { "aria-hidden": "true" }, shape("use", { href: `#i-${name}` }));
}

/** Set text only where it changed: a live region is read out when it is touched. Without text it is hidden. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
  element.hidden = !text;
}

/** Let the browser save `text` as a file. */
export function save(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
  make("a", { href: address, download: name }).click();
  // The download holds the data by then.
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** `m:ss`, or `h:mm:ss`. */
export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (n) => String(n).padStart(2, "0");
  return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

/** Wait until the browser has drawn and answered. Returns the time then. */
export async function breathe() {
  await new Promise((next) => setTimeout(next));
  return performance.now();
}
