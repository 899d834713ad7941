// The live transcript: a line for each utterance, committed words solid, tentative words grey, its translation below.

import { clock, icon, make } from "./dom.js";
import { t } from "./i18n.js";
import { Follow } from "./live-follow.js";
import { LINE_STEP } from "./live-keeper.js";

export class LiveView {
  #list;
  #sheet;
  #latest;
  #announcer;
  #replay;
  #follow = new Follow();
  #lines = new Map(); // key -> {line, element, ...}

  /** `parts`: the elements {list, sheet, latest, announcer}; `replay(line)` plays its sound. */
  constructor({ list, sheet, latest, announcer }, replay) {
    this.#list = list;
    this.#sheet = sheet;
    this.#latest = latest;
    this.#announcer = announcer;
    this.#replay = replay;
    sheet.addEventListener("scroll", () => this.#scrolled(() => this.#follow.scrolled(sheet)), { passive: true });
    latest.onclick = () => {
      this.#scrolled(() => this.#follow.toEnd(sheet));
      sheet.focus({ preventScroll: true }); // the button is hidden now
    };
    // A sheet that becomes smaller hides its newest line.
    new ResizeObserver(() => this.#grown()).observe(sheet);
  }

  /** All lines in order: {key, start, end, committed, tentative, final, translation?}. */
  get lines() {
    return [...this.#lines.values()].map(({ line }) => line);
  }

  /** Finished lines with words in them, in order. */
  get finished() {
    return this.lines.filter((line) => line.final && line.committed.trim());
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
    entry.line = { ...line, translation: entry.line.translation };
    entry.solid.textContent = line.committed;
    entry.grey.textContent = line.tentative;
    entry.element.classList.toggle("open", !line.final);
    entry.text.lang = line.languageCode ?? "";
    // Screen readers get final words only.
    if (line.final) this.#announcer.textContent = line.committed;
    this.#grown();
  }

  /** Show the rows of an earlier recording, a line for each utterance. */
  restore(rows, languageCode) {
    this.clear();
    const lines = Map.groupBy?.(rows, numberOf) ?? grouped(rows);
    for (const [number, parts] of lines) {
      const text = (name) => parts.map((row) => row[name] ?? "").join(" ").trim();
      const line = { key: `kept ${number}`, start: parts[0].start, end: parts.at(-1).end, committed: text("text"), tentative: "", languageCode };
      this.show({ ...line, final: parts.every((row) => row.complete) });
      this.translate(line.key, text("translation"), "");
    }
    this.#announcer.textContent = "";
  }

  translate(key, text, code) {
    const entry = this.#lines.get(key);
    if (!entry || !text) return;
    entry.line.translation = text;
    if (!entry.translation) {
      entry.translation = make("p", { className: "translation", dir: "auto" });
      entry.element.append(entry.translation);
    }
    entry.translation.lang = code;
    entry.translation.textContent = text;
    this.#grown();
  }

  /** Remove unfinished lines: a new session transcribes them again. */
  dropOpen() {
    for (const [key, { line }] of this.#lines) if (!line.final) this.#remove(key);
  }

  clear() {
    this.#lines.clear();
    this.#list.replaceChildren();
    this.#announcer.textContent = "";
    this.#scrolled(() => this.#follow.toEnd(this.#sheet));
  }

  #add(line) {
    const solid = make("span", { className: "solid" });
    const grey = make("span", { className: "grey" });
    const text = make("p", { dir: "auto" }, solid, grey);
    const time = clock(line.start);
    const play = make("button", { type: "button", className: "icon replay" }, icon("play"));
    play.setAttribute("aria-label", t("live.replay", { time }));
    const element = make("li", {}, make("time", { textContent: time }), text, play);
    const entry = { line, element, solid, grey, text };
    play.onclick = () => this.#replay(entry.line);
    this.#lines.set(line.key, entry);
    this.#list.append(element);
    return entry;
  }

  #remove(key) {
    this.#lines.get(key)?.element.remove();
    this.#lines.delete(key);
  }

  #grown() {
    this.#scrolled(() => this.#follow.changed(this.#sheet));
  }

  #scrolled(move) {
    move();
    this.#latest.hidden = this.#follow.following;
  }
}

function numberOf(row) {
  return Math.floor((row.n - 1) / LINE_STEP);
}

/** For browsers without `Map.groupBy`. */
function grouped(rows) {
  const groups = new Map();
  for (const row of rows) groups.set(numberOf(row), [...(groups.get(numberOf(row)) ?? []), row]);
  return groups;
}
