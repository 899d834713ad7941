// The lines of the page of captions: one for each utterance, in the order in which they were first shown.
//
// new CaptionLines(element)
// lines.show({ utterance, text, language_code })
//     add what the line lacks of the text; the text begins with what it has.
// lines.isEmpty

import { make } from "./dom.js";

const MOST = 40; // far more than fit on a screen

export class CaptionLines {
  #element;
  #shown = new Map(); // by utterance: the text node of its line
  #last = 0; // the newest utterance whose line was removed

  constructor(element) {
    this.#element = element;
  }

  get isEmpty() {
    return this.#shown.size === 0;
  }

  show({ utterance, text, language_code: language }) {
    if (utterance <= this.#last) return;
    const line = this.#shown.get(utterance) ?? this.#added(utterance, language);
    if (text.startsWith(line.data)) line.appendData(text.slice(line.length));
  }

  #added(utterance, language) {
    const line = document.createTextNode("");
    this.#element.append(make("p", { dir: "auto", ...(language && { lang: language }) }, line));
    this.#shown.set(utterance, line);
    if (this.#shown.size > MOST) {
      const [oldest, removed] = this.#shown.entries().next().value;
      removed.parentNode.remove();
      this.#shown.delete(oldest);
      this.#last = oldest;
    }
    return line;
  }
}
