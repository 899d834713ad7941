// Texts to read aloud: what the server takes of them, and their parts and sentences. Places are those of JavaScript's strings.
//
// cleaned(text)              the same text with a blank for every character that the server refuses
// characters(text)           its length as the server counts it
// hasWords(text)             whether there is anything to speak
// decoded(bytes)             the text of a file
// part(text, from)           {to, isLast}: how much of it one request has
// placeOf(text, characters)  the place behind so many characters
// sentences(text, language)  [{start, end}]: what can be chosen on the page until the server has sent its own

const PART = 2000; // about two minutes of speech
const REFUSED = /[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\p{Surrogate}/gu; // control characters, halves of characters
const BLANKS = /^\s+|\s+$/g;

export function cleaned(text) {
  return text.replace(REFUSED, " ");
}

export function characters(text) {
  let count = 0;
  for (const _ of text) count++;
  return count;
}

export function hasWords(text) {
  return /[\p{L}\p{N}]/u.test(text);
}

/** UTF-16 with its mark, UTF-8, or what else Windows writes. */
export function decoded(bytes) {
  const mark = { "254,255": "utf-16be", "255,254": "utf-16le" }[String(bytes.slice(0, 2))];
  if (mark) return new TextDecoder(mark).decode(bytes);
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return new TextDecoder("windows-1252").decode(bytes);
  }
}

export function part(text, from) {
  if (text.length - from <= PART) return { to: text.length, isLast: true };
  return { to: whole(text, from + PART), isLast: false };
}

/** This place, or the one before it inside a character. */
export function whole(text, place) {
  return text.codePointAt(place - 1) > 0xffff ? place - 1 : place;
}

export function placeOf(text, count) {
  let place = 0;
  for (let left = count; left > 0; left--) place += text.codePointAt(place) > 0xffff ? 2 : 1;
  return place;
}

export function sentences(text, language) {
  const found = [...new Intl.Segmenter(language, { granularity: "sentence" }).segment(text)].filter(({ segment }) => hasWords(segment));
  return found.map(({ segment, index }) => {
    const start = index + segment.search(/\S/);
    return { start, end: start + segment.replace(BLANKS, "").length };
  });
}
