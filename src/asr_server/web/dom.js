// Helpers for the document that every panel uses.
//
// find(id)                         the element
// make(tag, properties, ...children)  make("button", { className: "quiet" }, "Copy")
// icon(name)                       the drawing `i-NAME` of index.html, for buttons of the class "icon"
// say(element, text)               set a text, hide the element when it is empty
// save(name, type, text)           let the browser save a file
// clock(seconds)                   "m:ss" or "h:mm:ss"
// SLICE_MS                         what a task may compute before the browser may draw
// breathe()                        wait until it has drawn and answered; gives the time then

const SVG = "http://www.w3.org/2000/svg";

export const SLICE_MS = 8;

export function find(id) {
  return document.getElementById(id);
}

/** An element with properties and children: `make("button", { className: "quiet" }, "Copy")`. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** A drawing that is hidden from screen readers: the button around it has an aria-label. */
export function icon(name) {
  const drawing = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  drawing.setAttribute("aria-hidden", "true");
  drawing.append(use);
  return drawing;
}

/** Set text only where it changed: a live region is read out when it is touched. */
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

export async function breathe() {
  await new Promise((next) => setTimeout(next));
  return performance.now();
}
