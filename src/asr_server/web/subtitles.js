// Segments of a transcript to subtitle cues, and cues to SRT and WebVTT.
//
// A segment is {start, end, text, words?}, a cue {start, end, text, voice?}; all times are seconds. Rows of a transcript are such
// segments. A word is {text, start, end}. Where a segment has no word times, the time of a word is estimated from
// its length.

const COLUMNS = 42; // of a line
const LINES = 2;
const LONGEST_S = 7;
const PAUSE_S = 1; // ends a cue anywhere
const SHORT_PAUSE_S = 0.5; // ends a cue behind a sentence
const JOINER = "\u2060";
const WORDS = new Intl.Segmenter(undefined, { granularity: "word" });
const SENTENCE_END = /[.!?…。！？]["'”’)\]]*$/u;
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\p{Emoji_Presentation}]/u;
const NARROW = /[\p{Mn}\p{Me}\p{Cf}]/u;

const cut = new WeakMap(); // cache of the cues of a segment: each new segment asks for all of them again

/** Cues of at most two lines and seven seconds, in order, none overlapping the next. Segments must not be changed. */
export function cuesOf(segments) {
  const cues = segments.flatMap((segment) => {
    if (!cut.has(segment)) cut.set(segment, cutUp(segment));
    return cut.get(segment);
  });
  return cues.map((c, i) => {
    const next = cues[i + 1];
    return next && next.start > c.start ? { ...c, end: Math.min(c.end, next.start) } : c;
  });
}

function cutUp(segment) {
  const cues = [];
  let open = [];
  const close = () => {
    if (open.length) cues.push(cue(open));
    open = [];
  };
  for (const piece of pieces(segment)) {
    if (open.length && (pauses(open, piece) || !fits(open, piece))) close();
    open.push(piece);
    if (SENTENCE_END.test(piece.text.trim()) && width(textOf(open)) > COLUMNS / 2) close();
  }
  close();
  return cues;
}

/** The whole SRT file. */
export function srt(cues) {
  return cues.map((c, i) => `${i + 1}\n${span(c, ",")}\n${unmarked(c.text)}\n\n`).join("");
}

/** SubRip has no escapes: word joiners, which are not shown, keep text from being read as times or markup. */
function unmarked(text) {
  const untimed = text.replaceAll(/^.*-->.*$/gm, (line) => line.replaceAll(":", `:${JOINER}`));
  return untimed.replaceAll(/--(?=>)|<(?=[/!?A-Za-z])|\{(?=[\\A-Za-z])/g, `$&${JOINER}`);
}

/** The whole WebVTT file. */
export function vtt(cues) {
  return `WEBVTT\n\n${cues.map((c) => `${span(c, ".")}\n${c.voice ? `<v ${escaped(c.voice)}>` : ""}${escaped(c.text)}\n\n`).join("")}`;
}

/** Cue text with what WebVTT reserves written out (section 4.2.2). */
export function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** Seconds as `HH:MM:SS` and milliseconds behind `point`. */
export function timestamp(seconds, point) {
  const ms = Math.round(seconds * 1000);
  const two = (n) => String(n).padStart(2, "0");
  const whole = [Math.floor(ms / 3600000), Math.floor(ms / 60000) % 60, Math.floor(ms / 1000) % 60];
  return `${whole.map(two).join(":")}${point}${String(ms % 1000).padStart(3, "0")}`;
}

/** Columns that a text takes: wide characters, as Chinese and Japanese are written with, take two, marks on them none. */
export function width(text) {
  return [...text].reduce((sum, character) => sum + (NARROW.test(character) ? 0 : WIDE.test(character) ? 2 : 1), 0);
}

/** The words of a segment, spaces kept, each with its times: those it has, or estimated ones. */
export function pieces(segment) {
  return timed(segment) ?? estimated(segment);
}

function timed({ text, words }) {
  if (!words?.length) return null;
  const found = [];
  let at = 0;
  for (const word of words) {
    const core = word.text.trim();
    const from = text.indexOf(core, at);
    // The words do not match the text, so their times do not apply.
    if (from < 0) return null;
    const until = from + core.length;
    if (found.length) found.at(-1).text += text.slice(at, from);
    found.push({ text: (found.length ? "" : text.slice(0, from)) + text.slice(from, until), start: word.start, end: word.end });
    at = until;
  }
  found.at(-1).text += text.slice(at);
  return found;
}

function estimated({ start, end, text }) {
  const units = split(text);
  const total = units.reduce((sum, unit) => sum + width(unit), 0) || 1;
  let passed = 0;
  return units.map((unit) => {
    const from = passed;
    passed += width(unit);
    const at = (n) => start + ((end - start) * n) / total;
    return { text: unit, start: at(from), end: at(passed) };
  });
}

/** Words with the spaces and marks behind them. Scripts without spaces are cut where the browser's dictionary says. */
function split(text) {
  const units = [];
  let afterWord = false;
  for (const { segment, isWordLike } of WORDS.segment(text)) {
    if (!units.length || begins(units.at(-1), segment, isWordLike, afterWord)) units.push(segment);
    else units[units.length - 1] += segment;
    afterWord = isWordLike;
  }
  return units;
}

/** Whether a line may be broken before `segment`. */
function begins(before, segment, isWord, afterWord) {
  if (/^\s/u.test(segment) || /[\p{Ps}\p{Pi}]$/u.test(before)) return false;
  if (/\s$/u.test(before)) return true;
  const wide = WIDE.test(segment);
  return isWord ? wide || afterWord : wide && /^[\p{Ps}\p{Pi}]/u.test(segment);
}

function pauses(open, piece) {
  const pause = piece.start - open.at(-1).end;
  return pause >= PAUSE_S || (pause >= SHORT_PAUSE_S && SENTENCE_END.test(open.at(-1).text.trim()));
}

function fits(open, piece) {
  const short = piece.end - open[0].start <= LONGEST_S;
  return short && wrapped(textOf([...open, piece])).length <= LINES;
}

function cue(open) {
  const end = Math.max(open.at(-1).end, open[0].start + 0.001);
  return { start: open[0].start, end, text: balanced(textOf(open)).join("\n") };
}

function textOf(open) {
  // Corrections may hold line breaks, and a blank line would end the cue in a file.
  const text = open.map((piece) => piece.text).join("");
  return text.replaceAll(/[\s\p{Cc}]+/gu, " ").trim();
}

function wrapped(text, columns = COLUMNS) {
  const lines = [""];
  for (const unit of split(text)) {
    if (lines.at(-1) && width((lines.at(-1) + unit).trimEnd()) > columns) lines.push("");
    lines[lines.length - 1] += unit;
  }
  return lines.map((line) => line.trim());
}

/** As few lines as needed, and those about equally long. */
function balanced(text) {
  const fewest = wrapped(text);
  for (let columns = Math.ceil(width(text) / fewest.length); columns < COLUMNS; columns++) {
    const lines = wrapped(text, columns);
    if (lines.length === fewest.length) return lines;
  }
  return fewest;
}

function span(c, point) {
  return `${timestamp(c.start, point)} --> ${timestamp(c.end, point)}`;
}
