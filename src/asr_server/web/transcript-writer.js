// Writes the segments of a file into the rows of its transcript, in the order in which the server sends them.

import { LANGUAGES } from "./languages.js";
import { People, Turns, labelled } from "./speakers.js";
import { placed, rowsOf } from "./transcript.js";

const SLICE = 100; // rows that get their speakers in one task

/** Segments come when their text is known. Where speakers are told apart, all come again at the end, one for each turn. */
export class Writer {
  #store;
  #id;
  #writing = Promise.resolve();
  #rows = []; // in order, as they were cut
  #turns = [];
  #people = new People((changes) => this.update(changes));

  /** `rows`: the transcript's rows from an earlier transcription that stopped. */
  constructor(store, id, rows = []) {
    this.#store = store;
    this.#id = id;
    this.#rows = [...rows];
  }

  /** Returns how many rows are new. */
  segment(segment) {
    if (segment.speaker !== undefined) {
      this.#turns.push(segment);
      return 0;
    }
    const { text, language } = segment;
    if (text && !this.#rows.length) this.update(spoken(language));
    const rows = text ? placed(this.#rows, rowsOf(segment)) : [];
    if (rows.length) this.#queue(() => this.#store.putRows(this.#id, rows));
    return rows.length;
  }

  update(changes) {
    this.#queue(() => this.#store.update(this.#id, changes));
  }

  /** Write what is left to be written, and wait for the store. */
  async close() {
    this.#people.meet(this.#turns);
    if (this.#turns.length) this.#queue(() => this.#label());
    await this.#writing;
  }

  /** Rows are read when it is their turn: they may have been corrected since they came. */
  async #label() {
    const turns = new Turns(this.#turns);
    const order = (await this.#store.rows(this.#id)).map(({ n }) => n);
    for (let at = 0; at < order.length; at += SLICE) {
      const rows = await this.#store.rowsAt(this.#id, order.slice(at, at + SLICE));
      const found = labelled(rows, turns, order[at + SLICE]);
      if (found.length) await this.#store.putRows(this.#id, found);
    }
  }

  #queue(work) {
    this.#writing = this.#writing.then(() => this.#store.attempt(work));
  }
}

/** The fields for the language of a transcript, by its English name. */
export function spoken(name) {
  const code = Object.keys(LANGUAGES).find((one) => LANGUAGES[one] === name) ?? "";
  return name === "auto" ? {} : { language: name, languageCode: code };
}
