// Captions: the last lines of what is said over the whole screen, in large type on black. Escape leaves.

import { find, make } from "./dom.js";

const LINES = 4; // more do not fit at this size
const SIZES = [1, 1.35, 1.8, 0.75]; // of the type, as a share of what fits by default

/** The last of `lines`, the open one included. */
export function lastLines(lines, count = LINES) {
  return lines.filter(({ committed, tentative }) => (committed + tentative).trim()).slice(-count);
}

export class Captions {
  #dialog = find("captions");
  #list = find("captions-lines");
  #size = 0;

  constructor() {
    find("captions-close").onclick = () => this.close();
    find("captions-size").onclick = () => {
      this.#size = (this.#size + 1) % SIZES.length;
      this.#dialog.style.setProperty("--size", String(SIZES[this.#size]));
    };
    // Escape first ends the full screen of the browser, and the dialog gets no key.
    this.#dialog.addEventListener("fullscreenchange", () => !document.fullscreenElement && this.close());
    this.#dialog.addEventListener("close", () => document.fullscreenElement && document.exitFullscreen());
  }

  get open() {
    return this.#dialog.open;
  }

  /** Not every browser gives the whole screen; without it the captions fill the window. */
  show(lines) {
    this.#dialog.showModal();
    this.#dialog.requestFullscreen?.().catch(() => {});
    this.update(lines);
  }

  close() {
    if (this.#dialog.open) this.#dialog.close();
  }

  update(lines) {
    if (!this.open) return;
    const shown = lastLines(lines).map((line) => {
      const text = make("p", { dir: "auto", lang: line.languageCode ?? "" }, line.committed, make("span", { textContent: line.tentative }));
      const parts = line.translation ? [text, make("p", { className: "translation", dir: "auto", textContent: line.translation })] : [text];
      return make("li", {}, ...parts);
    });
    this.#list.replaceChildren(...shown);
  }
}
