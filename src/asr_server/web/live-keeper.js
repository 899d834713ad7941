// What a recording leaves in the store: its rows as they become final, and its sound, half a second at a time.
//
// What the store has not confirmed is in `tail()`, small enough to be written at once when the page goes away.

import { People, Turns, labelled } from "./speakers.js";

const PIECE_S = 0.5;
const MOST_TAIL_S = 60; // of sound that a slow disk has not taken
export const LINE_STEP = 2 ** 24; // of row numbers, for each line: it may be cut anew, and readers split its rows

export class Keeper {
  soundEnd; // bytes of sound since the recording began
  full = false; // the store takes no more sound
  onfull = () => {};
  #store;
  #id;
  #cut;
  #bytesPerSecond;
  #pieces = []; // {at, bytes}: not confirmed by the store, in order; the last one is still growing
  #writing = Promise.resolve();
  #lines = new Map(); // key of a line -> {number, segment, rows}
  #people = new People((changes) => this.update(changes));
  #nextLine;
  #finalEnd; // seconds up to which the lines are final
  #open = null; // the line that is being spoken

  /** `cut(segment, after)` gives the rows of a segment. `soundEnd` and `lines`: where a recording goes on. */
  constructor(store, id, { cut, bytesPerSecond, soundEnd = 0, lines = 0, finalEnd = 0 }) {
    this.#store = store;
    this.#id = id;
    this.#cut = cut;
    this.#bytesPerSecond = bytesPerSecond;
    this.soundEnd = soundEnd;
    this.#nextLine = lines;
    this.#finalEnd = finalEnd;
  }

  get id() {
    return this.#id;
  }

  sound(bytes) {
    const at = this.soundEnd;
    this.soundEnd += bytes.length;
    if (this.full) return;
    let piece = this.#pieces.at(-1);
    if (!piece || piece.written) this.#pieces.push((piece = { at, parts: [], length: 0, written: false }));
    piece.parts.push(bytes);
    piece.length += bytes.length;
    if (piece.length >= PIECE_S * this.#bytesPerSecond) this.#write(piece);
  }

  /** Write what has been recorded until now, and wait for the store. */
  async settle() {
    const piece = this.#pieces.at(-1);
    if (piece && !piece.written) this.#write(piece);
    await this.#writing;
  }

  /** A line in its present form. Returns its rows if it is final. */
  line(line) {
    if (!line.final) {
      this.#open = line;
      return [];
    }
    if (this.#open?.key === line.key) this.#open = null;
    const rows = this.#put(line.key, { start: line.start, end: line.end, text: line.committed, speakers: line.speakers });
    this.#finalEnd = Math.max(this.#finalEnd, line.end);
    // Behind its rows: what `live` counts is in the store.
    this.update({ durationS: this.soundEnd / this.#bytesPerSecond, live: { lines: this.#nextLine, finalEnd: this.#finalEnd } });
    return rows;
  }

  /** Keep the open line as it is now: no final will come. */
  keepOpen() {
    if (!this.#open) return false;
    const { start, end, committed, tentative, speakers } = this.#open;
    const text = committed + tentative;
    this.#open = null;
    return this.#put("open", { start, end, text, speakers, complete: false }).length > 0;
  }

  /** The open line is transcribed again by a new session. */
  dropOpen() {
    this.#open = null;
  }

  /** The times of the words of a final line. Returns its rows. */
  words(key, words) {
    const segment = this.#lines.get(key)?.segment;
    return segment ? this.#put(key, { ...segment, words }) : [];
  }

  /** Who said what of a line, known now or better than before: runs [{speaker, text}]. Returns its rows. */
  speakers(key, speakers) {
    if (this.#open?.key === key) this.#open = { ...this.#open, speakers };
    const segment = this.#lines.get(key)?.segment;
    return segment ? this.#put(key, { ...segment, speakers }) : [];
  }

  /** The translation of the row of this number and text. Returns the key of its line, or "". */
  translated(n, text, translation) {
    for (const [key, { rows }] of this.#lines) {
      const row = rows.find((one) => one.n === n && one.text.trim() === text.trim());
      if (!row) continue;
      row.translation = translation;
      this.#queue(async () => {
        // It may have been corrected since it was put.
        const [now] = await this.#store.rowsAt(this.#id, [n]);
        if (now?.text === row.text) await this.#store.putRows(this.#id, [{ ...now, translation }]);
      });
      return key;
    }
    return "";
  }

  /** The rows of a line, as they were put last. */
  rows(key) {
    return this.#lines.get(key)?.rows ?? [];
  }

  update(changes) {
    this.#queue(() => this.#store.update(this.#id, changes));
  }

  /** What the store has not confirmed: {id, at, pcm, open}, or null for nothing. */
  tail() {
    const last = this.#pieces.at(-1);
    const at = last ? Math.max(this.#pieces[0].at, last.at + last.length - MOST_TAIL_S * this.#bytesPerSecond) : this.soundEnd;
    const parts = this.#pieces.flatMap((piece) => piece.parts);
    const pcm = joined(parts).subarray(this.#pieces.length ? at - this.#pieces[0].at : 0);
    const open = this.#open && { start: this.#open.start, end: this.#open.end, text: this.#open.committed + this.#open.tentative };
    if (!pcm.length && !open) return null;
    return { id: this.#id, at, pcm, open, n: this.#nextLine * LINE_STEP };
  }

  #put(key, segment) {
    if (!segment.text.trim()) return [];
    const line = this.#lines.get(key) ?? { number: this.#nextLine++, rows: [] };
    const old = line.rows;
    const rows = this.#cut(segment, line.number * LINE_STEP);
    for (const row of rows) {
      const before = old.find(({ text }) => text === row.text);
      if (before?.translation) row.translation = before.translation;
    }
    this.#lines.set(key, { number: line.number, segment, rows });
    this.#people.meet(rows);
    this.#queue(() => this.#replace(line.number, old, rows));
    return rows;
  }

  /** Put rows in the place of those that were put before. If these have been corrected, only the speakers are new. */
  async #replace(number, old, rows) {
    const now = await this.#store.rowsAt(this.#id, old.map(({ n }) => n));
    if (old.every((row, i) => now[i]?.text === row.text && now[i].speaker === row.speaker)) {
      const gone = old.map(({ n }) => n).filter((n) => !rows.some((row) => row.n === n));
      return this.#store.changeRows(this.#id, gone, rows);
    }
    const [from, until] = [number * LINE_STEP, (number + 1) * LINE_STEP];
    const corrected = (await this.#store.rows(this.#id)).filter(({ n }) => n > from && n <= until);
    return this.#store.putRows(this.#id, labelled(corrected, new Turns(rows)));
  }

  #write(piece) {
    piece.written = true;
    this.#queue(async () => {
      if (this.full) return;
      const kept = await this.#store.appendSound(this.#id, new Blob(piece.parts));
      // What is stored stays the beginning of the sound, without a hole, so that its times stay true.
      if (kept === false) this.#stop();
      else this.#pieces = this.#pieces.filter((one) => one !== piece);
    });
  }

  #stop() {
    this.full = true;
    this.#pieces = [];
    this.onfull();
  }

  #queue(work) {
    this.#writing = this.#writing.then(() => this.#store.attempt(work));
  }
}

function joined(parts) {
  const out = new Uint8Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}
