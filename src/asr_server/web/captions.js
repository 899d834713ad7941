// Captions: the last lines of what is said over the whole screen, in large type on black. Escape leaves.

import { find, make } from "./dom.js";
import { paintSpeaker, speakerName, turnsOf } from "./speakers.js";

const LINES = 4; // more do not fit at this size
const SIZES = [1, 1.35, 1.8, 0.75]; // of the type, as a share of what fits by default

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
  show(lines, names) {
    this.#dialog.showModal();
    this.#dialog.requestFullscreen?.().catch(() => {});
    this.update(lines, names);
  }

  close() {
    if (this.#dialog.open) this.#dialog.close();
  }

  /** `names` of the speakers: {id: name}. */
  update(lines, names) {
    if (!this.open) return;
    let last;
    // The open line is one of them.
    const said = lines.filter(({ committed, tentative }) => (committed + tentative).trim());
    const shown = said.slice(-LINES).map((line) => {
      const turns = turnsOf(line).map(({ speaker, text }) => {
        const named = speaker !== undefined && speaker !== last;
        last = speaker;
        const name = named ? [make("b", { textContent: `${speakerName(speaker, names)}: ` })] : [];
        const turn = make("p", { dir: "auto", lang: line.languageCode ?? "" }, ...name, text);
        if (named) paintSpeaker(turn, speaker, names);
        return turn;
      });
      turns.at(-1).append(make("span", { textContent: line.tentative }));
      const translation = line.translation ? [make("p", { className: "translation", dir: "auto", textContent: line.translation })] : [];
      return make("li", {}, ...turns, ...translation);
    });
    this.#list.replaceChildren(...shown);
  }
}
