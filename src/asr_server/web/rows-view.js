// The rows of the reader as a list: made in slices, with the spoken word, found words and uncertain words marked.
//
// Rows lie in blocks, which the browser lays out only near the window. A row's text is one text node. Words are marked with highlights (CSS Custom Highlight API), so that 20,000 words are no
// more elements than there are rows. A browser without them marks the row alone.

import { SLICE_MS, breathe, make } from "./dom.js";
import { fillItem, fillSpeaker, itemOf } from "./row-item.js";
import { RowHistory } from "./row-history.js";
import { wordsIn } from "./row-words.js";
import { paintSpeaker, speakerName } from "./speakers.js";
import { lastBefore } from "./transcript.js";

const BLOCK = 20; // rows
const UNSURE = 0.6; // confidence below which a word is marked
const FOLLOW_MARGIN = 0.2; // of the window, in which the spoken word is not kept

export class RowsView {
  history = new RowHistory(); // the rows that are shown
  following = true; // whether the spoken word is kept in sight
  unsure = false; // whether uncertain words are marked
  #list;
  #on;
  #items = new Map(); // n -> li
  #visible = new Set(); // blocks
  #observer;
  #found = new Map(); // n -> [{from, to}]
  #current = null; // {n, from, to} of the search
  #row = null; // the row that is spoken
  #word = null;
  #painting = false;
  #turn = 0; // counts calls of `show`: a later one ends the earlier
  people = {}; // speakers of the transcript: {id: name}

  /** `on`: {speaker(row, button)}: the menu of its speaker is asked for. */
  constructor(list, on) {
    this.#list = list;
    this.#on = on;
    this.#observer = new IntersectionObserver(
      (entries) => {
        for (const { target, isIntersecting } of entries) this.#visible[isIntersecting ? "add" : "delete"](target);
        this.paint();
      },
      { rootMargin: "200px" },
    );
  }

  /** The key of the row that is spoken, or of the first one. */
  get spoken() {
    return (this.#row ?? this.history.rows[0])?.n;
  }

  textOf(n) {
    return this.#items.get(n)?.querySelector(".line-text");
  }

  speakerButton(n) {
    return this.#items.get(n)?.querySelector(".speaker, .person");
  }

  /** Make the buttons of this item the ones that Tab reaches: thousands of rows would keep it from going on. */
  reach(item) {
    for (const button of this.#list.querySelectorAll('.line > button[tabindex="0"]')) button.tabIndex = -1;
    for (const button of item.querySelectorAll(":scope > button")) button.tabIndex = 0;
  }

  clear() {
    this.#turn++;
    this.#observer.disconnect();
    this.#items.clear();
    this.#visible.clear();
    this.#found.clear();
    this.#row = this.#word = this.#current = null;
    this.#list.replaceChildren();
    globalThis.CSS?.highlights?.clear();
  }

  /** Make the items of all rows, from the first on, in slices. */
  async showAll() {
    this.clear();
    const turn = this.#turn;
    const rows = this.history.rows;
    let since = performance.now();
    // Rows may be put in or taken out meanwhile; `#put` finds their places.
    for (let i = 0; i < rows.length; i++) {
      if (!this.#items.has(rows[i].n)) this.#put(rows[i], i);
      if (performance.now() - since < SLICE_MS) continue;
      since = await breathe();
      if (turn !== this.#turn) return;
    }
    this.paint();
  }

  /** Follow a change of the rows: {remove: [n], put: [row]}. A small one is shown when the call returns. */
  async update({ remove, put }) {
    const turn = this.#turn;
    let since = performance.now();
    for (const n of remove) this.#remove(n);
    for (const row of put) {
      const at = this.history.index(row.n);
      if (this.history.rows[at] !== row) continue; // changed again meanwhile
      this.#put(row, at);
      const next = this.history.rows[at + 1];
      if (next && this.#items.has(next.n)) this.#showSpeaker(this.#items.get(next.n), next, row);
      if (performance.now() - since < SLICE_MS) continue;
      since = await breathe();
      if (turn !== this.#turn) return;
    }
    this.paint();
  }

  #remove(n) {
    const item = this.#items.get(n);
    if (!item) return;
    this.#items.delete(n);
    const reachable = item.firstChild.tabIndex === 0;
    const neighbour = beside(item, 1) ?? beside(item, -1);
    const block = item.parentElement;
    item.remove();
    if (!block.childElementCount) {
      this.#observer.unobserve(block);
      this.#visible.delete(block);
      block.remove();
    }
    if (reachable && neighbour) this.reach(neighbour);
    if (this.#row?.n === n) this.#row = this.#word = null;
  }

  #put(row, at) {
    let item = this.#items.get(row.n);
    const known = Boolean(item);
    if (!known) {
      item = itemOf(row.n, this.#items.size === 0);
      this.#items.set(row.n, item);
    }
    fillItem(item, row);
    this.#showSpeaker(item, row, this.history.rows[at - 1]);
    if (known) return;
    // Behind the row before it, which may not have been made yet; then the next one that has.
    const rows = this.history.rows;
    let behind = at - 1;
    while (behind >= 0 && !this.#items.has(rows[behind].n)) behind--;
    const before = behind >= 0 ? this.#items.get(rows[behind].n) : null;
    if (!before) (this.#list.firstElementChild ?? this.#block(null)).prepend(item);
    else if (before.nextElementSibling || before.parentElement.childElementCount < BLOCK) before.after(item);
    else this.#block(before.parentElement).append(item);
  }

  /** A new block behind this one. */
  #block(before) {
    const block = make("ol", { className: "block" });
    if (before) before.after(block);
    else this.#list.append(block);
    this.#observer.observe(block);
    return block;
  }

  #showSpeaker(item, row, before) {
    const id = row.speaker;
    const menu = (button) => this.#on.speaker(this.history.row(row.n), button);
    paintSpeaker(item, id, this.people);
    if (id !== undefined) fillSpeaker(item, { name: speakerName(id, this.people), opens: id !== before?.speaker, menu });
    else fillSpeaker(item, Object.keys(this.people).length ? { name: "", menu } : null);
  }

  /** Show the speakers of all rows again, in slices. */
  async showSpeakers() {
    const turn = this.#turn;
    let since = performance.now();
    for (let i = 0; i < this.history.rows.length; i++) {
      const row = this.history.rows[i];
      const item = this.#items.get(row.n);
      if (item) this.#showSpeaker(item, row, this.history.rows[i - 1]);
      if (performance.now() - since < SLICE_MS) continue;
      since = await breathe();
      if (turn !== this.#turn) return;
    }
  }

  // -- marks ----------------------------------------------------------------------------------------------------------

  /** Mark the row and the word at this time, and keep the word in sight. Returns the row. */
  mark(seconds) {
    const rows = this.history.rows;
    const found = rows[lastBefore(rows, seconds)];
    const row = found && seconds < found.end ? found : null;
    if (row !== this.#row) {
      this.#item(this.#row)?.classList.remove("now");
      this.#item(this.#row)?.removeAttribute("aria-current");
      this.#item(row)?.classList.add("now");
      this.#item(row)?.setAttribute("aria-current", "true");
      this.#row = row;
    }
    const all = row ? wordsIn(row) : [];
    const at = lastBefore(all, seconds);
    const word = at >= 0 && seconds < all[at].end ? all[at] : null;
    if (word === this.#word) return row;
    this.#word = word;
    const from = all.slice(0, at).reduce((sum, { text }) => sum + text.length, 0);
    const range = word && this.#range(row.n, from, from + word.text.trimEnd().length);
    highlight("spoken", range ? [range] : []);
    if (range && this.following) this.#keepInSight(range);
    return row;
  }

  #item(row) {
    return row && this.#items.get(row.n);
  }

  #keepInSight(range) {
    const { top, bottom } = range.getBoundingClientRect();
    const edge = innerHeight * FOLLOW_MARGIN;
    if (top >= edge && bottom <= innerHeight - edge) return;
    // Rows that were never drawn have estimated heights, so the first jump may miss.
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches || Math.abs(top - innerHeight / 2) > innerHeight;
    scrollBy({ top: top - innerHeight * 0.35, behavior: still ? "instant" : "smooth" });
  }

  /** Mark what a search found: [{n, from, to}]; `current` is marked apart and, to `jump`, brought into sight. */
  find(found, current, jump = false) {
    this.#found = grouped(found);
    this.#current = current;
    this.paint();
    if (!current || !jump) return;
    const item = this.#items.get(current.n);
    item?.scrollIntoView({ block: "center" });
    // The heights around it are known once it was drawn.
    requestAnimationFrame(() => item?.scrollIntoView({ block: "center" }));
  }

  /** Draw the marks of the rows in sight, in the next frame. */
  paint() {
    if (this.#painting) return;
    this.#painting = true;
    requestAnimationFrame(() => {
      this.#painting = false;
      const [found, unsure, current] = [[], [], []];
      for (const item of [...this.#visible].flatMap((block) => [...block.children])) {
        const row = this.history.row(Number(item.dataset.n));
        if (!row) continue;
        for (const place of this.#found.get(row.n) ?? []) (samePlace(place, this.#current) ? current : found).push(this.#range(row.n, place.from, place.to));
        if (this.unsure) unsure.push(...this.#unsure(row));
      }
      highlight("found", found);
      highlight("found-now", current);
      highlight("unsure", unsure);
    });
  }

  #unsure(row) {
    let at = 0;
    return (row.words ?? []).flatMap(({ text, confidence }) => {
      at += text.length;
      return confidence < UNSURE ? [this.#range(row.n, at - text.length, at - text.length + text.trimEnd().length)] : [];
    });
  }

  #range(n, from, to) {
    const node = this.textOf(n)?.firstChild;
    if (!node || node.nodeType !== Node.TEXT_NODE) return null;
    const range = new Range();
    range.setStart(node, Math.min(from, node.length));
    range.setEnd(node, Math.min(to, node.length));
    return range;
  }
}

/** The item behind (1) or before (-1) this one, also in another block. */
export function beside(item, direction) {
  const block = item.parentElement;
  if (direction > 0) return item.nextElementSibling ?? block.nextElementSibling?.firstElementChild ?? null;
  return item.previousElementSibling ?? block.previousElementSibling?.lastElementChild ?? null;
}

function samePlace(a, b) {
  return b && a.n === b.n && a.from === b.from;
}

function highlight(name, ranges) {
  if (!globalThis.Highlight) return;
  CSS.highlights.set(name, new Highlight(...ranges.filter(Boolean)));
}

function grouped(found) {
  const groups = new Map();
  for (const place of found) {
    if (!groups.has(place.n)) groups.set(place.n, []);
    groups.get(place.n).push(place);
  }
  return groups;
}
