// Edits of rows in their place: the text, Enter to split a row, Backspace at its start to join it with the one before.

import { clock } from "./dom.js";
import { t } from "./i18n.js";
import { between, edited, joined, split } from "./transcript.js";

export class RowEditor {
  #view;
  #on;
  #text = null; // the element that is edited
  #before = null; // its row, as it was

  /** `on`: {draft(change), edit(change, before), lost(n, text)}: a text while it is typed, an edit that can be undone, and a text
   * that was typed while another tab changed the row. */
  constructor(list, view, on) {
    this.#view = view;
    this.#on = on;
    list.addEventListener("keydown", (event) => this.#key(event));
    list.addEventListener("input", () => this.#draft());
    list.addEventListener("focusout", (event) => event.target === this.#text && this.finish());
    list.addEventListener("paste", (event) => this.#paste(event));
  }

  get open() {
    return this.#text !== null;
  }

  /** Edit the row `n`, with the caret before character `at`; without it, at the end. */
  begin(n, at = Infinity) {
    const row = this.#view.history.row(n);
    const text = this.#view.textOf(n);
    if (!row || !text) return;
    if (this.#text !== text) {
      this.finish();
      this.#text = text;
      this.#before = row;
      try {
        text.contentEditable = "plaintext-only";
      } catch {
        text.contentEditable = "true"; // Firefox before 136
      }
      text.setAttribute("role", "textbox");
      text.setAttribute("aria-multiline", "true");
      text.setAttribute("aria-label", t("reader.text_of_line", { time: clock(row.start) }));
    }
    text.focus();
    const node = text.firstChild;
    if (node) getSelection().collapse(node, Math.min(at, node.length));
  }

  /** End editing and keep the text. A row without text is removed; undoing brings it back. */
  finish() {
    if (!this.#text) return;
    const [text, before] = [this.#text, this.#before];
    this.#close();
    const row = edited(before, text.textContent);
    if (row === before) text.textContent = before.text;
    else if (row.text) this.#on.edit({ put: [row] }, [before]);
    else this.#on.edit({ remove: [row.n] }, [before]);
  }

  /** Rows come from elsewhere. If the text of the one that is edited has changed there, editing ends. */
  arrived(rows) {
    const row = this.#text && rows.find(({ n }) => n === this.#before.n);
    if (!row) return;
    if (row.text !== this.#view.history.row(row.n)?.text) {
      const mine = edited(this.#before, this.#text.textContent).text;
      if (mine !== this.#before.text && mine !== row.text) this.#on.lost(row.n, mine);
      this.#close();
    } else if (row.speaker !== undefined) this.#before = { ...this.#before, speaker: row.speaker };
  }

  #close() {
    const text = this.#text;
    this.#text = null;
    for (const name of ["contenteditable", "role", "aria-multiline", "aria-label"]) text.removeAttribute(name);
  }

  /** Each key is stored at once: a page that is left has no time for it. */
  #draft() {
    if (!this.#text) return;
    const row = edited(this.#before, this.#text.textContent);
    if (row.text && row.text !== this.#view.history.row(row.n)?.text) this.#on.draft({ put: [row] });
  }

  #paste(event) {
    if (!this.#text || this.#text.contentEditable !== "true") return;
    event.preventDefault();
    document.execCommand("insertText", false, event.clipboardData.getData("text/plain"));
  }

  #key(event) {
    // While a word is composed (input methods), keys belong to the composition. Safari shows it by the code alone.
    if (event.target !== this.#text || event.isComposing || event.keyCode === 229) return;
    const run = this.#command(event);
    if (!run) return;
    event.preventDefault();
    event.stopPropagation();
    run();
  }

  #command(event) {
    const plain = !event.shiftKey && !event.ctrlKey && !event.metaKey && !event.altKey;
    if (event.key === "Escape") return () => this.#leave();
    if (event.key === "Enter") return plain ? () => this.#split() : () => this.#leave();
    if (!plain) return null;
    const { at, all, selected } = this.#caret();
    if (event.key === "Backspace" && at === 0 && !selected) return () => this.#join(-1);
    if (event.key === "Delete" && at === all && !selected) return () => this.#join(1);
    if (event.key === "ArrowUp" && this.#atEdge("top")) return () => this.#move(-1, at);
    if (event.key === "ArrowDown" && this.#atEdge("bottom")) return () => this.#move(1, at);
    return null;
  }

  #leave() {
    const item = this.#text.closest("li");
    this.finish();
    (item.isConnected ? item : document.querySelector("#reader-rows li"))?.firstChild.focus({ preventScroll: true });
  }

  #caret() {
    const range = getSelection().getRangeAt(0);
    const before = new Range();
    before.setStart(this.#text, 0);
    before.setEnd(range.startContainer, range.startOffset);
    return { at: before.toString().length, all: this.#text.textContent.length, selected: !range.collapsed };
  }

  /** Whether the caret is in the first ("top") or last ("bottom") line. An empty selection at a line's start has no box. */
  #atEdge(side) {
    const box = getSelection().getRangeAt(0).getClientRects()[0];
    const text = this.#text.getBoundingClientRect();
    if (!box) return true;
    return Math.abs(box[side] - text[side]) < box.height;
  }

  #move(direction, at) {
    const { rows } = this.#view.history;
    const next = rows[this.#view.history.index(this.#before.n) + direction];
    if (next) this.begin(next.n, direction > 0 ? Math.min(at, next.text.length) : at);
  }

  #split() {
    const { history } = this.#view;
    const text = this.#text.textContent;
    const at = text.slice(0, this.#caret().at).replaceAll(/\s+/gu, " ").trimStart().length;
    const before = this.#before;
    const n = between(before.n, history.rows[history.index(before.n) + 1]?.n);
    const parts = n === null ? [] : split(edited(before, text), at, n);
    if (parts.length < 2) return;
    this.#close();
    this.#on.edit({ put: parts }, [before]);
    this.begin(n, 0);
  }

  #join(direction) {
    const { history } = this.#view;
    const other = history.rows[history.index(this.#before.n) + direction];
    if (!other) return;
    const before = this.#before;
    const mine = edited(before, this.#text.textContent);
    const [first, second] = direction < 0 ? [other, mine] : [mine, other];
    const row = mine.text ? joined(first, second) : { ...other, n: first.n };
    this.#close();
    this.#on.edit({ remove: [second.n], put: [row] }, [before]);
    this.begin(row.n, mine.text || direction < 0 ? row.text.length - second.text.length : 0);
  }
}
