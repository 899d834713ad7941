// The live transcript: a line for each utterance, committed words solid, tentative words grey, its translation below. Where
// speakers are told apart, each turn of an utterance stands alone, with its name where the speaker changes.

import { clock, icon, make } from "./dom.js";
import { t } from "./i18n.js";
import { Follow } from "./live-follow.js";
import { LINE_STEP } from "./live-keeper.js";
import { openSpeakerMenu } from "./speaker-menu.js";
import { paintSpeaker, speakerName, turnsOf } from "./speakers.js";

export class LiveView {
  names = {}; // of the speakers: {id: name}
  #list;
  #sheet;
  #latest;
  #announcer;
  #on;
  #follow = new Follow();
  #lines = new Map(); // key -> {line, element, ...}

  /** `parts`: the elements {list, sheet, latest, announcer}. `on`: {replay(line), rename(id, name)}: play the sound of a line; a
   * speaker gets a name. */
  constructor({ list, sheet, latest, announcer }, on) {
    this.#list = list;
    this.#sheet = sheet;
    this.#latest = latest;
    this.#announcer = announcer;
    this.#on = on;
    sheet.addEventListener("scroll", () => this.#scrolled(() => this.#follow.scrolled(sheet)), { passive: true });
    latest.onclick = () => {
      this.#scrolled(() => this.#follow.toEnd(sheet));
      sheet.focus({ preventScroll: true }); // the button is hidden now
    };
    // A sheet that becomes smaller hides its newest line, as text does that grows when its typeface arrives.
    const sizes = new ResizeObserver(() => this.#grown());
    sizes.observe(sheet);
    sizes.observe(list);
  }

  /** All lines in order: {key, start, end, committed, tentative, speakers, final, translation?}. */
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
    entry.element.classList.toggle("open", !line.final);
    this.#fill(entry);
    // Screen readers get final words only.
    if (line.final) this.#announcer.textContent = spokenText(line, this.names);
    this.#grown();
  }

  /** Who said what of a line, known now or better than before. */
  speak(key, speakers) {
    const entry = this.#lines.get(key);
    if (!entry) return;
    entry.line = { ...entry.line, speakers };
    this.#fill(entry);
    this.#grown();
  }

  /** Show these names of the speakers. */
  call(names) {
    this.names = { ...names };
    for (const entry of this.#lines.values()) this.#name(entry);
  }

  /** Show the rows of an earlier recording, a line for each utterance. */
  restore(rows, { languageCode, speakers }) {
    this.clear();
    this.names = { ...speakers };
    const lines = Map.groupBy?.(rows, numberOf) ?? grouped(rows);
    for (const [number, parts] of lines) {
      const text = (name) => parts.map((row) => row[name] ?? "").join(" ").trim();
      const line = { key: `kept ${number}`, start: parts[0].start, end: parts.at(-1).end, committed: text("text"), tentative: "", languageCode, speakers: runsOf(parts) };
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
    this.names = {};
    this.#lines.clear();
    this.#list.replaceChildren();
    this.#announcer.textContent = "";
    this.#scrolled(() => this.#follow.toEnd(this.#sheet));
  }

  #add(line) {
    const turns = make("div", { className: "turns" });
    const time = clock(line.start);
    const play = make("button", { type: "button", className: "icon replay" }, icon("play"));
    play.setAttribute("aria-label", t("live.replay", { time }));
    const element = make("li", {}, make("time", { textContent: time }), turns, play);
    element.dataset.key = line.key;
    const entry = { line, element, turns };
    play.onclick = () => this.#on.replay(entry.line);
    this.#lines.set(line.key, entry);
    this.#list.append(element);
    return entry;
  }

  /** Elements that are there stay: a text that is selected, or a name that has the focus, is not lost with each word. */
  #fill(entry) {
    const { line, turns, element } = entry;
    const wanted = turnsOf(line);
    while (turns.children.length > wanted.length) turns.lastChild.remove();
    wanted.forEach(({ text }, i) => {
      const turn = turns.children[i] ?? turns.appendChild(emptyTurn());
      const [solid, grey] = turn.lastChild.children;
      turn.lastChild.lang = line.languageCode ?? "";
      solid.textContent = text;
      grey.textContent = i === wanted.length - 1 ? line.tentative : "";
    });
    this.#name(entry);
    this.#nameAt(element.nextElementSibling);
  }

  #nameAt(element) {
    const entry = this.#lines.get(element?.dataset.key);
    if (entry) this.#name(entry);
  }

  /** Put the names where the speaker is not that of the turn before. */
  #name({ line, turns, element }) {
    const before = this.#lines.get(element.previousElementSibling?.dataset.key);
    let last = before && turnsOf(before.line).at(-1).speaker;
    turnsOf(line).forEach(({ speaker }, i) => {
      const turn = turns.children[i];
      paintSpeaker(turn, speaker, this.names);
      turn.classList.toggle("voiced", speaker !== undefined);
      this.#showName(turn, speaker === last ? undefined : speaker);
      last = speaker;
    });
  }

  #showName(turn, speaker) {
    let button = turn.querySelector(".speaker");
    if (speaker === undefined) return void button?.remove();
    if (!button) {
      button = make("button", { type: "button", className: "speaker", title: t("speakers.name") });
      button.setAttribute("aria-haspopup", "dialog");
      turn.prepend(button);
    }
    button.textContent = speakerName(speaker, this.names);
    button.onclick = () => openSpeakerMenu(button, speaker, this.names, { rename: this.#on.rename });
  }

  #remove(key) {
    const next = this.#lines.get(key)?.element.nextElementSibling;
    this.#lines.get(key)?.element.remove();
    this.#lines.delete(key);
    this.#nameAt(next);
  }

  #grown() {
    this.#scrolled(() => this.#follow.changed(this.#sheet));
  }

  #scrolled(move) {
    move();
    this.#latest.hidden = this.#follow.following;
  }
}

function emptyTurn() {
  const [solid, grey] = ["solid", "grey"].map((className) => make("span", { className }));
  return make("div", { className: "turn" }, make("p", { dir: "auto" }, solid, grey));
}

/** A line as text, with the names of its speakers. */
export function spokenText(line, names) {
  return turnsOf(line)
    .map(({ speaker, text }) => (speaker === undefined ? "" : `${speakerName(speaker, names)}: `) + text.trim())
    .join("\n");
}

function runsOf(rows) {
  return rows.some(({ speaker }) => speaker !== undefined) ? rows.map(({ speaker, text }, i) => ({ speaker, text: (i ? " " : "") + text })) : [];
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
