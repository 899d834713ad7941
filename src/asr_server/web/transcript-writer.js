// Writes the segments of a file into the rows of its transcript, in the order in which the server sends them.

import { LANGUAGES } from "./languages.js";
import { People, labelled } from "./speakers.js";
import { addGap, placed, rowsOf } from "./transcript.js";

const SLICE = 100; // rows that get their speakers in one task

/** Text whose speakers are known later is written at once, and gets them at the end. */
export class Writer {
  #store;
  #id;
  #writing = Promise.resolve();
  #last = 0; // the order key of the last row
  #gaps = [];
  #known = []; // rows that came with a speaker
  #seen = new Set(); // segments that came with a speaker
  #turns = []; // who spoke in the rows that came without
  #people = new People((changes) => this.update(changes));
  #anonymous = false; // rows have come without a speaker

  constructor(store, id) {
    this.#store = store;
    this.#id = id;
  }

  /** Returns how many rows the segment has. */
  segment(segment) {
    const { text, start, end, speaker, language } = segment;
    // The server heard speech there.
    if (!text) addGap(this.#gaps, start, end);
    if (speaker && this.#anonymous) {
      this.#turns.push({ start, end, speaker });
      this.#people.meet([segment]);
      return 0;
    }
    if (speaker && this.#again(segment)) return 0;
    const rows = text ? this.#cut(segment) : [];
    this.#people.meet(rows);
    if (rows.length && this.#last === 0) this.update(spoken(language));
    if (rows.length) this.#queue(() => this.#store.putRows(this.#id, rows));
    this.#last = Math.max(this.#last, ...rows.map(({ n }) => n));
    return rows.length;
  }

  update(changes) {
    this.#queue(() => this.#store.update(this.#id, changes));
  }

  /** Write what is left to be written, and wait for the store. */
  async close() {
    if (this.#gaps.length) this.update({ gaps: this.#gaps });
    if (this.#turns.length) this.#queue(() => this.#label());
    await this.#writing;
  }

  #cut(segment) {
    const rows = rowsOf(segment, this.#last);
    if (segment.speaker) return placed(this.#known, rows);
    this.#anonymous = true;
    return rows;
  }

  /** Where the channel tells the speaker, segments come with it, and again when all speakers are known. */
  #again({ start, end, text }) {
    const key = JSON.stringify([start, end, text]);
    const again = this.#seen.has(key);
    this.#seen.add(key);
    return again;
  }

  /** Rows are read when it is their turn: they may have been corrected since they came. */
  async #label() {
    const turns = this.#turns.sort((a, b) => a.start - b.start);
    const order = (await this.#store.rows(this.#id)).map(({ n }) => n);
    for (let at = 0; at < order.length; at += SLICE) {
      const rows = await this.#store.rowsAt(this.#id, order.slice(at, at + SLICE));
      const found = labelled(rows, turns, order[at + SLICE]);
      if (found.length) await this.#store.putRows(this.#id, found);
    }
  }

  #queue(work) {
    this.#writing = this.#writing.then(work);
  }
}

/** The fields for the language of a transcript, by its English name. */
export function spoken(name) {
  const code = Object.keys(LANGUAGES).find((one) => LANGUAGES[one] === name) ?? "";
  return name === "auto" ? {} : { language: name, languageCode: code };
}
