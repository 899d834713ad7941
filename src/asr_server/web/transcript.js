// Rows of a transcript: cut from what the server sends, edited with the times kept, split, joined and searched.
//
// A row is {n, start, end, text, words?, speaker?, chosen?, translation?, complete}. `n` orders the rows; new rows are STEP apart,
// so that a row can be put between two others. `chosen` says that its speaker was chosen by hand. `words` are [{text, start, end, confidence?}]; their texts joined, blanks
// included, are the row's text. Times are seconds of the recording. Rows are never changed, only replaced.

import { pieces, width } from "./subtitles.js";

export const STEP = 1024;
const LONGEST_S = 12;
const LONGEST_COLUMNS = 220;
const SENTENCE_COLUMNS = 60; // shorter sentences share a row
const SHORT_PAUSE_S = 0.5; // ends a row behind a short sentence
const PAUSE_S = 1; // ends a row anywhere
const JOINED_GAP_S = 5;
const MOST_COMPARED = 4_000_000; // pairs of words in one comparison
const SENTENCE_END = /[.!?…。！？؟।]["'”’»)\]」』]*\s*$/u;
const CLAUSE_END = /[,;:，、；：،]["'”’»)\]」』]*\s*$/u;
const UNSPACED =
  "\\p{Script=Han}\\p{Script=Hiragana}\\p{Script=Katakana}\\p{Script=Thai}\\p{Script=Lao}\\p{Script=Khmer}\\p{Script=Myanmar}";
const TOKENS = new RegExp(`[${UNSPACED}]|(?:(?![${UNSPACED}])[\\p{L}\\p{M}\\p{N}])+|[^]`, "gu");
const NO_BLANK_BEFORE = new RegExp(`^[${UNSPACED}\\u3000-\\u303f\\uff00-\\uffef]`, "u");
const NO_BLANK_BEHIND = new RegExp(`[${UNSPACED}\\u3000-\\u303f\\uff00-\\uffef]$`, "u");
const LETTER = /[\p{L}\p{M}\p{N}]/u;
const OPENING = /[\p{Ps}\p{Pi}"'¿¡]+$/u;

/** Rows of a segment {start, end, text, words?, speaker?, speakers?, complete?} as the server sends it: they end at sentences,
 * pauses and changes of speaker. `speakers` are runs [{speaker, text}] whose texts joined are the text. Without word times,
 * the times of the rows are estimated, and they have no `words`. The first row follows `after`. */
export function rowsOf(segment, after = 0) {
  const words = timed(segment);
  const units = words ?? pieces({ start: segment.start, end: segment.end, text: segment.text.trim() });
  return grouped(spoken(units, segment)).map((group, i) => {
    const known = trimmed(group).map(({ speaker, ...unit }) => unit);
    const row = { n: after + (i + 1) * STEP, start: known[0].start, end: known.at(-1).end, text: textOf(known) };
    if (words) row.words = known;
    if (group[0].speaker !== undefined) row.speaker = group[0].speaker;
    return { ...row, complete: segment.complete !== false };
  });
}

/** Give new rows the order keys that put them in the order of time among `known`, rows in order that nobody else adds to, and
 * add them to it. Speakers on channels of their own speak at the same time. */
export function placed(known, rows) {
  return rows.map((row) => {
    const at = lastBefore(known, row.start);
    const [before, next] = [known[at]?.n ?? 0, known[at + 1]?.n];
    // A third: a reader that splits the row before takes the middle.
    const n = next === undefined ? before + STEP : before + (next - before) / 3;
    const mine = { ...row, n };
    known.splice(at + 1, 0, mine);
    return mine;
  });
}

/** Add a part without words to `gaps`, which are in order. Parts near each other become one. */
export function addGap(gaps, start, end) {
  const last = gaps.at(-1);
  if (last && start - last.end < JOINED_GAP_S) last.end = end;
  else gaps.push({ start, end });
}

/** The order key of a row between these two. Without `next`, one behind `before`. Some forty splits of the same place have
 * one; then it is null. */
export function between(before, next = before + 2 * STEP) {
  const middle = (before + next) / 2;
  return middle > before && middle < next ? middle : null;
}

/** The words of a row, blanks kept, each with a time: its own, or an estimated one. */
export function wordsOf(row) {
  return row.words ?? pieces({ start: row.start, end: row.end, text: row.text });
}

/** The row with another text. Words that both texts have keep their times; new words share the time between them. */
export function edited(row, text) {
  const wanted = text.replaceAll(/\s+/gu, " ").trim();
  if (wanted === row.text) return row;
  if (!row.words) return { ...row, text: wanted };
  return { ...row, text: wanted, words: retimed(row, wanted) };
}

/** Two rows, the second from character `at` on with the order key `n`; the row alone if one of them would be empty. */
export function split(row, at, n) {
  const [before, behind] = [row.text.slice(0, at).trimEnd(), row.text.slice(at).trimStart()];
  if (!before || !behind) return [row];
  const words = wordsOf(row);
  const [left, right] = [[], []];
  let from = 0;
  for (const word of words) {
    const inside = Math.min(Math.max(at - from, 0), word.text.length);
    const middle = word.start + ((word.end - word.start) * inside) / (word.text.length || 1);
    const broken = inside < word.text.trimEnd().length;
    if (inside) left.push({ ...word, text: word.text.slice(0, inside), end: broken ? middle : word.end });
    if (inside < word.text.length) right.push({ ...word, text: word.text.slice(inside), start: inside ? middle : word.start });
    from += word.text.length;
  }
  const [known, rest] = [trimmed(left), trimmed(right)];
  const first = { ...row, text: before, end: known.at(-1).end };
  const second = { ...row, n, text: behind, start: rest[0].start };
  delete second.translation;
  return row.words ? [{ ...first, words: known }, { ...second, words: rest }] : [first, second];
}

/** One row of two that follow each other, with the order key and speaker of the first. */
export function joined(a, b) {
  const row = { ...a, end: Math.max(a.end, b.end), text: together(a.text, b.text), complete: a.complete && b.complete };
  if (a.translation || b.translation) row.translation = together(a.translation ?? "", b.translation ?? "");
  delete row.words;
  if (!a.words && !b.words) return row;
  const [before, behind] = [wordsOf(a), wordsOf(b)];
  const blank = row.text.slice(a.text.length, row.text.length - b.text.length);
  const words = before.map((word, i) => (i === before.length - 1 ? { ...word, text: word.text + blank } : word));
  return { ...row, words: [...words, ...behind] };
}

/** Where `query` is found, in order: [{n, from, to}] with offsets of characters. Case and the kind of blanks do not count. */
export function findAll(rows, query) {
  const pattern = patternOf(query);
  if (!pattern) return [];
  return rows.flatMap(({ n, text }) =>
    [...text.matchAll(pattern)].map((match) => ({ n, from: match.index, to: match.index + match[0].length })),
  );
}

/** The rows that change when every place where `query` is found becomes `text`, with the times of other words kept. */
export function replaceAll(rows, query, text) {
  const pattern = patternOf(query);
  if (!pattern) return [];
  return rows.flatMap((row) => {
    const replaced = edited(row, row.text.replace(pattern, () => text));
    return replaced === row ? [] : [replaced];
  });
}

/** The index of the last of `items` with a start not after `seconds`, or -1. They must be in order. */
export function lastBefore(items, seconds) {
  let [low, high] = [0, items.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (items[middle].start <= seconds) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function patternOf(query) {
  const wanted = query.trim();
  if (!wanted) return null;
  return new RegExp(wanted.replaceAll(/[\\^$.*+?()[\]{}|/]/g, "\\$&").replaceAll(/\s+/gu, "\\s+"), "giu");
}

/** The server's words with the blanks and marks between them, or null where they do not belong to the text. */
function timed({ text, words }) {
  if (!words?.length) return null;
  const found = [];
  let at = 0;
  for (const { word, start, end, confidence, speaker } of words) {
    const core = word.trim();
    const from = text.indexOf(core, at);
    if (from < 0 || !core) return null;
    const between = text.slice(at, from);
    const opening = found.length ? (between.match(OPENING)?.[0] ?? "") : between;
    if (found.length) found.at(-1).text += between.slice(0, between.length - opening.length);
    const more = { ...(confidence === undefined ? {} : { confidence }), ...(speaker ? { speaker } : {}) };
    found.push({ text: opening + core, start, end: Math.max(start, end), ...more });
    at = from + core.length;
  }
  found.at(-1).text += text.slice(at);
  return found;
}

/** Each unit with its speaker: of the run in which it begins, else its own, else of the whole segment. */
function spoken(units, { text, speaker, speakers = [] }) {
  // Words with times have the blanks before the text, estimated ones do not.
  let at = /^\s/u.test(units[0]?.text ?? "") ? 0 : text.length - text.trimStart().length;
  let [run, until] = [0, speakers[0]?.text.length ?? 0];
  return units.map((unit) => {
    const from = at + unit.text.search(/\S|$/u);
    at += unit.text.length;
    while (run < speakers.length - 1 && from >= until) until += speakers[++run].text.length;
    const found = speakers[run]?.speaker ?? unit.speaker ?? speaker ?? undefined;
    return found === undefined ? unit : { ...unit, speaker: found };
  });
}

function grouped(units) {
  const groups = [];
  let open = [];
  units.forEach((unit, i) => {
    open.push(unit);
    if (i < units.length - 1 && !ends(open, units[i + 1])) return;
    groups.push(...bounded(open));
    open = [];
  });
  return groups.filter((group) => textOf(group).trim());
}

/** Whether a row ends before `next`. A small letter behind a full stop shows an abbreviation. */
function ends(open, next) {
  if (next.speaker !== open.at(-1).speaker) return true;
  const pause = next.start - open.at(-1).end;
  if (pause >= PAUSE_S) return true;
  if (!SENTENCE_END.test(open.at(-1).text) || /^\P{L}*\p{Ll}/u.test(next.text)) return false;
  return pause >= SHORT_PAUSE_S || width(textOf(open)) >= SENTENCE_COLUMNS;
}

/** The group cut where it is best cut until no part is too long. */
function bounded(group) {
  const length = group.at(-1).end - group[0].start;
  if (group.length < 2 || (length <= LONGEST_S && width(textOf(group)) <= LONGEST_COLUMNS)) return [group];
  const total = width(textOf(group));
  let best = { at: 1, score: -Infinity };
  let passed = 0;
  for (let at = 1; at < group.length; at++) {
    const before = group[at - 1];
    passed += width(before.text);
    const mark = SENTENCE_END.test(before.text) ? 0.6 : CLAUSE_END.test(before.text) ? 0.3 : 0;
    const score = mark + Math.max(0, group[at].start - before.end) - 2 * Math.abs(passed / total - 0.5);
    if (score > best.score) best = { at, score };
  }
  return [...bounded(group.slice(0, best.at)), ...bounded(group.slice(best.at))];
}

function textOf(units) {
  return units.map((unit) => unit.text).join("");
}

/** Units without blanks at both ends. */
function trimmed(units) {
  const kept = units.filter((unit, i) => unit.text.trim() || (i > 0 && i < units.length - 1));
  return kept.map((unit, i) => {
    const start = i === 0 ? unit.text.trimStart() : unit.text;
    return { ...unit, text: i === kept.length - 1 ? start.trimEnd() : start };
  });
}

/** Two texts one behind the other, with a blank where their scripts have blanks. */
export function together(a, b) {
  if (!a || !b) return a + b;
  return a + (NO_BLANK_BEHIND.test(a) || NO_BLANK_BEFORE.test(b) ? "" : " ") + b;
}

// -- edits ------------------------------------------------------------------------------------------------------------

function retimed(row, text) {
  const words = [];
  let at = 0;
  let prefix = "";
  // What stands between two kept words: marks and blanks go to the word before them, words get the time between.
  const fill = (until, endS) => {
    let gap = prefix + text.slice(at, until);
    prefix = "";
    if (until < text.length) {
      prefix = gap.match(OPENING)?.[0] ?? "";
      gap = gap.slice(0, gap.length - prefix.length);
    }
    if (words.length) {
      const head = LETTER.test(gap) ? gap.match(/^(?:(?![\p{L}\p{M}\p{N}])[^])*\s/u)?.[0] ?? "" : gap;
      words.at(-1).text += head;
      gap = gap.slice(head.length);
    }
    if (!LETTER.test(gap) && until < text.length) {
      prefix = gap + prefix;
    } else if (gap) {
      const startS = words.at(-1)?.end ?? row.start;
      words.push(...pieces({ text: gap, start: startS, end: Math.max(startS, endS) }));
    }
  };
  for (const { word, from, to } of keptWords(row, text)) {
    fill(from, word.start);
    words.push({ ...word, text: prefix + text.slice(from, to) });
    prefix = "";
    at = to;
  }
  if (at < text.length || !words.length) fill(text.length, row.end);
  return words;
}

/** The words whose letters the new text still has together: [{word, from, to}] with their places in it. */
function keptWords(row, text) {
  const places = mapped(row.text, text);
  const kept = [];
  let at = 0;
  for (const word of row.words) {
    const mark = LETTER.test(word.text) ? LETTER : /\S/u;
    const letters = [];
    for (const character of word.text) {
      if (mark.test(character)) letters.push([places[at], character.length]);
      at += character.length;
    }
    const [first, last] = [letters[0]?.[0], letters.at(-1)];
    if (!letters.length || letters.some(([place]) => place === undefined)) continue;
    const to = last[0] + last[1];
    const count = [...text.slice(first, to)].filter((character) => mark.test(character)).length;
    if (count === letters.length) kept.push({ word, from: first, to });
  }
  return kept;
}

/** For each character of `a` in a word that `b` has in the same order: its place in `b`. */
function mapped(a, b) {
  const [left, right] = [a.match(TOKENS) ?? [], b.match(TOKENS) ?? []];
  const places = [];
  let [i, j] = [0, 0];
  for (const [x, y, same] of aligned(left, right)) {
    if (same) for (let k = 0; k < left[x].length; k++) places[i + k] = j + k;
    if (x !== null) i += left[x].length;
    if (y !== null) j += right[y].length;
  }
  return places;
}

/** Steps [index in a or null, index in b or null, whether they are the same] of a longest common subsequence. */
function aligned(a, b) {
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a.at(-1 - tail) === b.at(-1 - tail)) tail++;
  const steps = Array.from({ length: head }, (_, i) => [i, i, true]);
  const [rows, columns] = [a.length - head - tail, b.length - head - tail];
  const wide = columns + 1;
  const small = rows * columns <= MOST_COMPARED;
  const common = new Uint32Array(small ? (rows + 1) * wide : 0);
  const same = (i, j) => a[head + i] === b[head + j];
  if (small)
    for (let i = rows - 1; i >= 0; i--)
      for (let j = columns - 1; j >= 0; j--)
        common[i * wide + j] = same(i, j)
          ? common[(i + 1) * wide + j + 1] + 1
          : Math.max(common[(i + 1) * wide + j], common[i * wide + j + 1]);
  let [i, j] = [0, 0];
  while (i < rows || j < columns) {
    if (small && i < rows && j < columns && same(i, j)) steps.push([head + i++, head + j++, true]);
    else if (j >= columns || (i < rows && (!small || common[(i + 1) * wide + j] >= common[i * wide + j + 1]))) steps.push([head + i++, null, false]);
    else steps.push([null, head + j++, false]);
  }
  for (let k = tail; k > 0; k--) steps.push([a.length - k, b.length - k, true]);
  return steps;
}
