// The words of rows and their times.

import { lastBefore, wordsOf } from "./transcript.js";

const words = new WeakMap(); // row -> its words

export function wordsIn(row) {
  if (!words.has(row)) words.set(row, wordsOf(row));
  return words.get(row);
}

/** The time of the word at this character of a row. */
export function timeAt(row, offset) {
  let passed = 0;
  for (const word of wordsIn(row)) {
    passed += word.text.length;
    if (offset < passed) return word.start;
  }
  return row.start;
}

/** The start of the next word (1) or the one before (-1), seen from `seconds`. */
export function wordBeside(rows, seconds, direction) {
  for (let i = Math.max(lastBefore(rows, seconds + 0.001), 0); rows[i]; i += direction) {
    const starts = wordsIn(rows[i]).map(({ start }) => start);
    // While it plays, the word before is not the one that has just begun.
    const found = direction > 0 ? starts.find((start) => start > seconds + 0.01) : starts.findLast((start) => start < seconds - 0.3);
    if (found !== undefined) return found;
  }
  return seconds;
}
