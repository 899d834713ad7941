// Search in the reader: next and previous, and replace.

import { SLICE_MS, breathe, find, say } from "./dom.js";
import { t } from "./i18n.js";
import { edited, findAll, replaceAll } from "./transcript.js";

export class Finder {
  #view;
  #on;
  #found = [];
  #at = -1;
  #query = find("reader-query");
  #by = find("reader-replacement");

  /** `on`: {edit(change), replaced(count)}. */
  constructor(view, on) {
    this.#view = view;
    this.#on = on;
    this.#query.oninput = () => this.refresh(true);
    this.#query.onkeydown = (event) => {
      if (event.key !== "Enter" || event.isComposing) return;
      event.preventDefault();
      this.step(event.shiftKey ? -1 : 1);
    };
    // A handler that returns false would swallow the key.
    find("reader-find").onkeydown = (event) => void (event.key === "Escape" && this.close());
    find("reader-find").onsubmit = (event) => {
      event.preventDefault();
      this.#replace();
    };
    find("reader-next").onclick = () => this.step(1);
    find("reader-previous").onclick = () => this.step(-1);
    find("reader-replace-all").onclick = () => this.#replaceAll();
    find("reader-find-close").onclick = () => this.close();
  }

  get shown() {
    return !find("reader-find").hidden;
  }

  open(query = this.#query.value) {
    find("reader-find").hidden = false;
    this.#query.value = query;
    this.#query.select();
    this.#query.focus();
    this.refresh(true);
  }

  close() {
    if (!this.shown) return;
    find("reader-find").hidden = true;
    this.#found = [];
    this.#view.find([], null);
    find("reader-search").focus({ preventScroll: true });
  }

  /** Search again; `jump` to the first place at or after the one before. */
  refresh(jump = false) {
    if (!this.shown) return;
    const before = this.#found[this.#at];
    this.#found = findAll(this.#view.history.rows, this.#query.value);
    const next = before ? this.#found.findIndex(({ n, from }) => n > before.n || (n === before.n && from >= before.from)) : 0;
    this.#at = Math.max(next, this.#found.length ? 0 : -1);
    this.#show(jump);
  }

  step(direction) {
    if (!this.#found.length) return;
    this.#at = (this.#at + direction + this.#found.length) % this.#found.length;
    this.#show(true);
  }

  #show(jump) {
    const all = this.#found.length;
    const shown = all ? t("reader.found", { at: this.#at + 1, count: all }) : t("reader.not_found");
    say(find("reader-found"), this.#query.value.trim() ? shown : "");
    for (const name of ["next", "previous", "replace", "replace-all"]) find(`reader-${name}`).disabled = !all;
    this.#view.find(this.#found, this.#found[this.#at] ?? null, jump);
  }

  #replace() {
    const place = this.#found[this.#at];
    if (!place) return;
    const row = this.#view.history.row(place.n);
    const text = row.text.slice(0, place.from) + this.#by.value + row.text.slice(place.to);
    this.#on.edit(changeOf([edited(row, text)]));
    // Go on behind what was put in, which may itself hold what is searched for.
    this.#found = findAll(this.#view.history.rows, this.#query.value);
    const behind = place.from + this.#by.value.length;
    const next = this.#found.findIndex(({ n, from }) => n > place.n || (n === place.n && from >= behind));
    this.#at = this.#found.length ? Math.max(next, 0) : -1;
    this.#show(true);
  }

  /** All at once is one edit. */
  async #replaceAll() {
    const { rows } = this.#view.history;
    const [query, by, count] = [this.#query.value, this.#by.value, this.#found.length];
    const changed = [];
    let since = performance.now();
    for (const row of [...rows]) {
      changed.push(...replaceAll([row], query, by));
      if (performance.now() - since >= SLICE_MS) since = await breathe();
    }
    if (changed.length) this.#on.edit(changeOf(changed));
    this.refresh();
    this.#on.replaced(count);
  }
}

/** A row that has lost all its text is removed. */
function changeOf(rows) {
  return { remove: rows.filter(({ text }) => !text).map(({ n }) => n), put: rows.filter(({ text }) => text) };
}
