// The speakers of a transcript: their names and colours, and which of them said what.
//
// A speaker is known by an id: a letter that the server gave ("A", "B"), or a name that it knows. `names` of a transcript are
// {id: name}, in the order of their first words; a name is "" until somebody gives one.

import { t } from "./i18n.js";
import { between, lastBefore, split, wordsOf } from "./transcript.js";

const COLOURS = 8; // --speaker-0 to --speaker-7 of style.css
const LETTERS = /^[A-Z]{1,2}$/;

/** The name that is shown. */
export function speakerName(id, names) {
  return names?.[id] || (LETTERS.test(id) ? t("speakers.unnamed", { id }) : id);
}

/** The number of a speaker's colour. A speaker that `names` does not have is added to them. */
export function speakerColour(id, names) {
  names[id] ??= "";
  return Object.keys(names).indexOf(id) % COLOURS;
}

/** Give an element the colour of a speaker; of nobody, where `id` is undefined. */
export function paintSpeaker(element, id, names) {
  element.style.setProperty("--voice", id === undefined ? "" : `var(--speaker-${speakerColour(id, names)})`);
}

/** What changes of a transcript when a speaker gets a name; `names` are those that are shown, in their order. */
export function withName(names, id, name) {
  return ({ speakers }) => ({ speakers: { ...unnamed(Object.keys(names)), ...speakers, [id]: name } });
}

function unnamed(ids) {
  return Object.fromEntries(ids.map((id) => [id, ""]));
}

/** The first letter that no speaker has. */
export function freeLetter(ids) {
  const taken = new Set(ids);
  for (let i = 0; ; i++) {
    const letter = (i < 26 ? "" : String.fromCharCode(64 + Math.floor(i / 26))) + String.fromCharCode(65 + (i % 26));
    if (!taken.has(letter)) return letter;
  }
}

/** Ids for the labels of live sessions that follow each other. Each session begins with the letter A, and its A may be somebody
 * else: a letter of a later session becomes one that is free. Names stay. */
export class SpeakerIds {
  #taken;
  #ids = new Map(); // label of this session -> id

  /** `taken`: ids that the transcript has already. */
  constructor(taken = []) {
    this.#taken = new Set(taken);
  }

  /** A new session begins. */
  fresh() {
    this.#ids.clear();
  }

  of(label) {
    if (!LETTERS.test(label)) return label;
    if (!this.#ids.has(label)) this.#ids.set(label, this.#taken.has(label) ? freeLetter(this.#taken) : label);
    this.#taken.add(this.#ids.get(label));
    return this.#ids.get(label);
  }
}

/** The committed text of a live line by turns: [{speaker, text}], one or more; `speaker` is undefined where nobody is known. */
export function turnsOf({ committed, speakers = [] }) {
  const turns = [];
  for (const { speaker, text } of speakers) {
    const known = speaker ?? undefined;
    if (turns.length && turns.at(-1).speaker === known) turns.at(-1).text += text;
    else turns.push({ speaker: known, text });
  }
  return turns.length ? turns : [{ speaker: undefined, text: committed }];
}

/** Tells of speakers that were not met before. */
export class People {
  #met = new Set();
  #update;

  /** `update(changes)` changes the transcript. */
  constructor(update) {
    this.#update = update;
  }

  /** Those who speak in these rows or segments. */
  meet(rows) {
    const before = this.#met.size;
    for (const { speaker } of rows) if (speaker) this.#met.add(speaker);
    const ids = [...this.#met];
    if (ids.length > before) this.#update(({ speakers }) => ({ speakers: { ...unnamed(ids), ...speakers } }));
  }
}

/** Who spoke when: segments or rows [{start, end, speaker, words?}] of which each has one speaker, or none. */
export class Turns {
  #turns;
  #words = new Map(); // times of a word -> its speaker
  end; // of the last one, in seconds

  constructor(segments) {
    this.#turns = [...segments].sort((a, b) => a.start - b.start);
    this.end = Math.max(...segments.map(({ end }) => end));
    for (const { speaker, words = [] } of segments) {
      for (const word of words) {
        const times = timesOf(word);
        // Two who say a word at the very same time, each on a channel.
        this.#words.set(times, this.#words.has(times) && this.#words.get(times) !== speaker ? null : speaker);
      }
    }
  }

  /** Who said each word of a row, or undefined: by the times of its words. A word that was put in is that of its neighbour, and
   * where no word is known, the middle of each counts. People speak at the same time, so times alone may mislead. */
  of(words) {
    const known = words.map((word) => this.#words.get(timesOf(word)) ?? undefined);
    if (known.every((speaker) => speaker === undefined)) return words.map(({ start, end }) => this.#at((start + end) / 2));
    return known.map((speaker, i) => speaker ?? nearest(known, i));
  }

  #at(seconds) {
    const at = lastBefore(this.#turns, seconds);
    const [turn, next] = [this.#turns[at], this.#turns[at + 1]];
    const later = !turn || (next && seconds >= turn.end && seconds - turn.end > next.start - seconds);
    return (later ? next : turn).speaker ?? undefined;
  }
}

function timesOf({ start, end }) {
  return `${start} ${end}`;
}

function nearest(known, at) {
  for (let distance = 1; ; distance++) {
    const found = known[at - distance] ?? known[at + distance];
    if (found !== undefined) return found;
  }
}

/** The rows that change when it becomes known who spoke. A row of several speakers is split; one whose speaker was chosen by hand
 * keeps it. Of rows behind the last turn nothing is known. `rows` are in order; `next` is the order key of the row behind them. */
export function labelled(rows, turns, next = undefined) {
  return rows.flatMap((row, i) => (row.chosen || row.start >= turns.end ? [] : divided(row, rows[i + 1]?.n ?? next, turns)));
}

/** The rows that are no longer as they were when `speaker` of all rows in `from` is `to`. */
export function merged(rows, from, to) {
  return rows.filter(({ speaker }) => speaker === from).map((row) => ({ ...row, speaker: to, chosen: true }));
}

function divided(row, next, turns) {
  const words = wordsOf(row);
  const speakers = turns.of(words).map((speaker) => speaker ?? row.speaker);
  const parts = [];
  let [rest, cut, at] = [row, 0, 0];
  words.forEach((word, i) => {
    if (i && speakers[i] !== speakers[i - 1]) {
      const n = between(rest.n, next);
      const [first, second] = n === null ? [rest] : split(rest, at - cut, n);
      if (second) {
        parts.push(of(first, speakers[i - 1]));
        rest = second;
        cut = row.text.length - second.text.length;
      }
    }
    at += word.text.length;
  });
  const last = of(rest, speakers.at(-1));
  return parts.length || last.speaker !== row.speaker ? [...parts, last] : [];
}

function of(row, speaker) {
  return speaker === undefined ? row : { ...row, speaker };
}
