// The transcript of a file as a list: each row has a time to jump to and an editable text; the current word is marked.

import { clock, make } from "./dom.js";
import { pieces } from "./subtitles.js";

export class SegmentsView {
  #list;
  #rows = []; // {segment, element, text, words: [{start, end, element}]}
  #on;
  #now = null; // the row that is marked
  #word = null;

  /** `on`: {seek(seconds), edited()}. */
  constructor(list, on) {
    this.#list = list;
    this.#on = on;
  }

  get segments() {
    return this.#rows.map((row) => row.segment);
  }

  clear() {
    this.#rows = [];
    this.#now = this.#word = null;
    this.#list.replaceChildren();
  }

  add(segment) {
    const row = { segment, words: [] };
    const time = make("button", { type: "button", className: "time", textContent: clock(segment.start) });
    time.setAttribute("aria-label", `Play from ${clock(segment.start)}`);
    time.onclick = () => this.#on.seek(row.segment.start);
    row.text = make("p", { dir: "auto" });
    const edit = make("button", { type: "button", className: "edit", textContent: "Edit" });
    edit.setAttribute("aria-label", `Edit the line at ${clock(segment.start)}`);
    edit.onclick = () => this.#edit(row, edit);
    row.element = make("li", {}, time, row.text, edit);
    this.#rows.push(row);
    this.#fill(row);
    this.#list.append(row.element);
  }

  /** Mark the row and word at this time; -1 marks none. */
  mark(seconds) {
    const row = this.#rows.find(({ segment }) => seconds >= segment.start && seconds < segment.end) ?? null;
    if (row !== this.#now) {
      this.#now?.element.classList.remove("now");
      this.#now?.element.removeAttribute("aria-current");
      row?.element.classList.add("now");
      row?.element.setAttribute("aria-current", "true");
      row?.element.scrollIntoView({ block: "nearest" });
      this.#now = row;
    }
    const word = row?.words.find(({ start, end }) => seconds >= start && seconds < end)?.element ?? null;
    if (word !== this.#word) {
      this.#word?.classList.remove("now");
      word?.classList.add("now");
      this.#word = word;
    }
  }

  /** Words can be clicked everywhere, but are marked only where their times are known. */
  #fill(row) {
    const { segment } = row;
    row.words = [];
    const spans = pieces(segment).map(({ text, start, end }) => {
      const element = make("span", { textContent: text });
      element.onclick = () => this.#on.seek(start);
      if (segment.words?.length) row.words.push({ start, end, element });
      return element;
    });
    row.text.replaceChildren(...spans);
  }

  #edit(row, button) {
    const area = make("textarea", { value: row.segment.text, rows: 2, dir: "auto" });
    area.setAttribute("aria-label", `Text of the line at ${clock(row.segment.start)}; Enter keeps it, Escape does not`);
    let over = false;
    const close = (keep) => {
      if (over) return;
      over = true;
      const text = area.value.trim();
      if (keep && text !== row.segment.text) {
        // The word times belong to the original words.
        row.segment = { ...row.segment, text, words: undefined };
        this.#on.edited();
      }
      area.replaceWith(row.text);
      this.#fill(row);
      button.hidden = false;
    };
    area.onkeydown = (event) => {
      // While a word is composed (input methods), both keys belong to the composition. Safari shows it by the code alone.
      if (event.isComposing || event.keyCode === 229) return;
      if (event.key !== "Escape" && (event.key !== "Enter" || event.shiftKey)) return;
      event.preventDefault();
      close(event.key === "Enter");
      button.focus();
    };
    area.onblur = () => close(true);
    button.hidden = true;
    row.text.replaceWith(area);
    area.style.height = `${Math.max(area.scrollHeight, 48)}px`;
    area.focus();
  }
}
