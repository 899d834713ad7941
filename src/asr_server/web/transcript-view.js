// The live transcript: a line for each utterance, committed words solid, tentative words grey.

import { clock, make } from "./dom.js";

export class TranscriptView {
  #list;
  #lines = new Map(); // key -> {line, element}
  #announce;

  constructor(list, announcer) {
    this.#list = list;
    this.#announce = announcer;
  }

  /** Finished lines with words in them, in order. */
  get finished() {
    return [...this.#lines.values()].map((entry) => entry.line).filter((line) => line.final && line.committed.trim());
  }

  get empty() {
    return this.#lines.size === 0;
  }

  /** Show a line in place of the last one of its key. */
  show(line) {
    if (line.final && !line.committed.trim()) {
      this.#remove(line.key);
      return;
    }
    const entry = this.#lines.get(line.key) ?? this.#add(line);
    entry.line = line;
    entry.solid.textContent = line.committed;
    entry.grey.textContent = line.tentative;
    entry.element.classList.toggle("open", !line.final);
    entry.text.lang = line.languageCode;
    // Screen readers get final words only.
    if (line.final) this.#announce.textContent = line.committed;
    this.#follow();
  }

  /** Remove unfinished lines: a new session transcribes them again. */
  dropOpen() {
    for (const [key, { line }] of this.#lines) if (!line.final) this.#remove(key);
  }

  clear() {
    this.#lines.clear();
    this.#list.replaceChildren();
    this.#announce.textContent = "";
  }

  #add(line) {
    const solid = make("span", { className: "solid" });
    const grey = make("span", { className: "grey" });
    const text = make("p", { dir: "auto" }, solid, grey);
    const element = make("li", {}, make("time", { textContent: clock(line.start) }), text);
    const entry = { line, element, solid, grey, text };
    this.#lines.set(line.key, entry);
    this.#list.append(element);
    return entry;
  }

  #remove(key) {
    this.#lines.get(key)?.element.remove();
    this.#lines.delete(key);
  }

  /** Keep the newest line visible, unless the reader has scrolled up. */
  #follow() {
    const sheet = this.#list.parentElement;
    const below = sheet.scrollHeight - sheet.scrollTop - sheet.clientHeight;
    if (below < 160) sheet.scrollTop = sheet.scrollHeight;
  }
}
