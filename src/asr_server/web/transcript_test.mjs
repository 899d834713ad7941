import assert from "node:assert/strict";
import { test } from "node:test";

import { between, edited, findAll, joined, lastBefore, placed, replaceAll, rowsOf, split, STEP, wordsOf } from "./transcript.js";

/** A segment as the server sends it, `each` seconds a word; `pauses` are seconds of silence before the words at these indexes. */
function segment(text, { each = 0.4, start = 0, pauses = {} } = {}) {
  let at = start;
  const words = text.split(" ").map((word, i) => {
    at += pauses[i] ?? 0;
    at += each;
    return { word: word.replaceAll(/^["“(]+|[.,!?"”)]+$/g, ""), start: at - each, end: at, confidence: 0.9 };
  });
  return { start, end: at, text, words };
}

const texts = (rows) => rows.map((row) => row.text);
const whole = (row) => row.words.map((word) => word.text).join("");
const timesOf = (row, text) => {
  const word = row.words.find((w) => w.text.trim() === text);
  return word && [word.start, word.end];
};
const LONG = "This is a first sentence that has more than sixty columns of text. And this one follows it without any pause at all.";

test("rows end at sentences that are long enough", () => {
  assert.deepEqual(texts(rowsOf(segment(LONG))), [LONG.slice(0, 66), LONG.slice(67)]);
  assert.equal(rowsOf(segment("Yes. No. Well, yes.")).length, 1);
});

test("rows end at pauses", () => {
  const rows = rowsOf(segment("turn on the lights and play some music", { pauses: { 4: 1.2 } }));
  assert.deepEqual(texts(rows), ["turn on the lights", "and play some music"]);
  assert.ok(rows[0].end + 1.1 < rows[1].start);
});

test("an abbreviation does not end a row", () => {
  const text = "They met again and again with the members of the council, approx. twenty of them";
  assert.equal(rowsOf(segment(text)).length, 1);
});

test("no row is longer than twelve seconds or 220 columns, and no letter is lost", () => {
  for (const text of ["word ".repeat(400).trim(), "请打开厨房的灯，".repeat(100)]) {
    const rows = rowsOf({ start: 5, end: 305, text });
    assert.ok(rows.length > 10);
    for (const row of rows) assert.ok(row.end - row.start <= 12.001 && row.text.length <= 220, row.text);
    assert.equal(texts(rows).join("").replaceAll(" ", ""), text.replaceAll(" ", ""));
    assert.equal(rows[0].start, 5);
    assert.ok(rows.every((row) => row.words === undefined));
  }
});

test("words carry their blanks and marks, times and confidence", () => {
  const [row] = rowsOf(segment('He said, “turn on!” (twice)'));
  assert.equal(whole(row), row.text);
  assert.deepEqual(row.words.map((word) => word.text), ["He ", "said, ", "“turn ", "on!” ", "(twice)"]);
  assert.equal(row.words[2].confidence, 0.9);
});

test("rows keep what the segment says of itself, and have keys with room between", () => {
  const rows = rowsOf({ ...segment(LONG), speaker: "A", complete: false }, 4096);
  assert.deepEqual(rows.map(({ n, speaker, complete }) => [n, speaker, complete]), [[4096 + STEP, "A", false], [4096 + 2 * STEP, "A", false]]);
  assert.equal(between(1024, 2048), 1536);
  assert.equal(between(1024), 1024 + STEP);
  let [low, high, splits] = [1024, 2048, 0];
  for (let n = between(low, high); n !== null && splits < 100; n = between(low, high)) {
    assert.ok(n > low && n < high);
    [low, splits] = [n, splits + 1];
  }
  assert.ok(splits > 40 && splits < 100);
});

test("a change of speaker begins a row, whoever says it: the words, or runs of the text", () => {
  const said = segment('I think so. No, you do! "Yes," he said');
  const speakers = ["A", "A", "A", "B", "B", "B", null, null, null];
  const words = said.words.map((word, i) => ({ ...word, speaker: speakers[i] }));
  const seen = (rows) => rows.map(({ speaker, text }) => [speaker, text]);
  const wanted = [["A", "I think so."], ["B", "No, you do!"], ["C", '"Yes," he said']];
  const found = rowsOf({ ...said, words, speaker: "C" });
  assert.deepEqual(seen(found), wanted);
  assert.ok(found.every((row) => whole(row) === row.text && row.words.every((word) => word.speaker === undefined)));
  const runs = [{ speaker: "A", text: "I think so." }, { speaker: "B", text: " No, you do!" }, { speaker: "C", text: ' "Yes," he said' }];
  for (const given of [said, { ...said, words: undefined }, { ...said, words }]) assert.deepEqual(seen(rowsOf({ ...given, speakers: runs })), wanted);
  assert.deepEqual(seen(rowsOf({ start: 0, end: 2, text: " one two", speakers: [{ speaker: "A", text: " one" }, { speaker: null, text: " two" }] })), [["A", "one"], [undefined, "two"]]);
});

test("new rows are placed in the order of time between those that are known", () => {
  const known = [];
  const put = (...starts) => placed(known, starts.map((start) => ({ start, text: String(start) }))).map(({ n }) => n);
  assert.deepEqual(put(0, 10, 20), [STEP, 2 * STEP, 3 * STEP]);
  put(12, 14, 30, -1);
  assert.deepEqual(known.map(({ start }) => start), [-1, 0, 10, 12, 14, 20, 30]);
  assert.ok(known.every(({ n }, i) => n > (known[i - 1]?.n ?? 0)));
  assert.ok(!known.some(({ n }) => n === between(2 * STEP, 3 * STEP)));
});

test("words that do not belong to the text give no times", () => {
  const [row] = rowsOf({ start: 1, end: 2, text: "hello you", words: [{ word: "other", start: 9, end: 10 }] });
  assert.equal(row.words, undefined);
  assert.equal(row.start, 1);
});

test("an empty segment has no rows", () => {
  assert.deepEqual(rowsOf({ start: 0, end: 4, text: " " }), []);
});

test("an edit keeps the times of all other words", () => {
  const [row] = rowsOf(segment("turn on the kitchen lights and play some music"));
  const changed = edited(row, "turn on the bathroom light and play some music");
  for (const word of ["turn", "on", "the", "and", "play", "some", "music"]) assert.deepEqual(timesOf(changed, word), timesOf(row, word), word);
  assert.equal(whole(changed), changed.text);
  const [start, end] = [timesOf(row, "kitchen")[0], timesOf(row, "lights")[1]];
  assert.equal(timesOf(changed, "bathroom")[0], start);
  assert.ok(Math.abs(timesOf(changed, "light")[1] - end) < 1e-9);
  assert.equal(changed.words[3].confidence, undefined);
});

test("marks and capitals of an edit go to their words", () => {
  const [row] = rowsOf(segment("turn on the lights"));
  const changed = edited(row, "Turn on, the “lights”!");
  assert.deepEqual(changed.words.map((word) => word.text), ["Turn ", "on, ", "the ", "“lights”!"]);
  assert.deepEqual(timesOf(changed, "“lights”!"), timesOf(row, "lights"));
  assert.equal(changed.words[0].start, 0);
});

test("words put in at the start, the end and between stay inside the row", () => {
  const [row] = rowsOf(segment("turn on the lights", { start: 3 }));
  for (const text of ["please turn on the lights", "turn on the lights please", "turn on all of the lights", "nothing of it", "("]) {
    const changed = edited(row, text);
    assert.equal(whole(changed), text);
    let last = row.start;
    for (const word of changed.words) {
      assert.ok(word.start >= last - 1e-9 && word.end >= word.start && word.end <= row.end + 1e-9, `${text}: ${JSON.stringify(word)}`);
      last = word.start;
    }
  }
  assert.deepEqual(edited(row, " ").words, []);
});

test("any edit keeps words and text together, in any script", () => {
  // A small generator, so that a failure can be repeated.
  let seed = 7;
  const random = (n) => (seed = (seed * 48271) % 2147483647) % n;
  const stock = ["turn", " ", "on", ", ", "灯", "请打开", "ที่", "“", "”", "-", "e\u0301", "😀", "lights.", "  ", "مرحبا"];
  for (let round = 0; round < 300; round++) {
    const make = () => Array.from({ length: random(12) }, () => stock[random(stock.length)]).join("").trim();
    const words = make().split(" ").filter(Boolean);
    const known = words.map((text, i) => ({ text: i < words.length - 1 ? `${text} ` : text, start: i, end: i + 1 }));
    const row = { n: 1, start: 0, end: words.length, text: known.map((word) => word.text).join(""), words: known, complete: true };
    const text = make();
    const changed = edited(row, text);
    assert.equal(changed.text, text.replaceAll(/\s+/g, " "));
    assert.equal(whole(changed), changed.text);
    assert.ok(changed.words.every((word, i) => word.end >= word.start && (!i || word.start >= changed.words[i - 1].start)));
  }
});

test("Chinese keeps the times of characters around an edit", () => {
  const characters = [..."请打开厨房的灯"].map((word, i) => ({ word, start: i, end: i + 1 }));
  const [row] = rowsOf({ start: 0, end: 7, text: "请打开厨房的灯", words: characters });
  const changed = edited(row, "请打开卧室的灯");
  assert.deepEqual(changed.words.slice(0, 3), row.words.slice(0, 3));
  assert.deepEqual(changed.words.slice(-2), row.words.slice(-2));
});

test("a row without word times has its text changed and its times kept", () => {
  const row = { n: 1, start: 2, end: 5, text: "one two", complete: true };
  assert.deepEqual(edited(row, "one three"), { ...row, text: "one three" });
  assert.equal(edited(row, "one\n two"), row);
});

test("a row split and joined again is the same row", () => {
  const [row] = rowsOf(segment("turn on the lights and play"));
  const [a, b] = split(row, 11, 1500);
  assert.deepEqual([a.text, b.text, b.n], ["turn on the", "lights and play", 1500]);
  assert.deepEqual([whole(a), whole(b)], [a.text, b.text]);
  assert.equal(b.start, timesOf(row, "lights")[0]);
  assert.equal(a.end, timesOf(row, "the")[1]);
  assert.deepEqual(joined(a, b), row);
});

test("a split inside a word shares its time", () => {
  const [row] = rowsOf(segment("turn on", { each: 1 }));
  const [a, b] = split(row, 2, 2);
  assert.deepEqual([a.text, b.text], ["tu", "rn on"]);
  assert.equal(whole(b), b.text);
  assert.ok(a.end > 0.3 && a.end < 0.6 && b.start === a.end);
  assert.deepEqual(split(row, 0, 2), [row]);
  assert.deepEqual(split(row, 7, 2), [row]);
});

test("rows of scripts without blanks are joined without one, incomplete ones stay so", () => {
  const row = (text, complete = true) => ({ n: 1, start: 0, end: 1, text, complete });
  assert.equal(joined(row("请打开"), row("厨房的灯")).text, "请打开厨房的灯");
  assert.equal(joined(row("불을"), row("켜")).text, "불을 켜");
  assert.equal(joined(row("one"), row("two", false)).complete, false);
  assert.equal(joined({ ...row("a"), translation: "x" }, { ...row("b"), translation: "y" }).translation, "x y");
});

test("joining a row with word times and one without keeps the known ones", () => {
  const [a] = rowsOf(segment("turn on"));
  const both = joined(a, { n: 9, start: 2, end: 4, text: "the lights", complete: true });
  assert.equal(whole(both), both.text);
  assert.deepEqual(timesOf(both, "turn"), timesOf(a, "turn"));
});

test("a search finds every place, whatever the case and blanks, and takes no pattern", () => {
  const rows = [{ n: 1, text: "Turn on (the lights)" }, { n: 2, text: "the  lights. THE LIGHTS" }];
  assert.deepEqual(findAll(rows, "the lights"), [{ n: 1, from: 9, to: 19 }, { n: 2, from: 0, to: 11 }, { n: 2, from: 13, to: 23 }]);
  assert.deepEqual(findAll(rows, "(the"), [{ n: 1, from: 8, to: 12 }]);
  assert.deepEqual(findAll(rows, "."), [{ n: 2, from: 11, to: 12 }]);
  assert.deepEqual(findAll(rows, "  "), []);
});

test("replacing gives the rows that change, with the other times kept", () => {
  const rows = rowsOf(segment("turn on the lights and the music. Nothing here at all, as it seems to me today. Turn off the lights."));
  const changed = replaceAll(rows, "lights", "$1 lamps");
  assert.ok(changed.length >= 1 && changed.length < rows.length + 1);
  assert.ok(changed[0].text.startsWith("turn on the $1 lamps and"));
  assert.deepEqual(timesOf(changed[0], "and"), timesOf(rows[0], "and"));
  assert.deepEqual(replaceAll(rows, "absent", "x"), []);
});

test("a row joined of very many words can still be edited", () => {
  const words = Array.from({ length: 6000 }, (_, i) => ({ text: `w${i} `, start: i, end: i + 1 }));
  const row = { n: 1, start: 0, end: 6000, text: words.map((word) => word.text).join("").trim(), words: words.with(-1, { ...words.at(-1), text: "w5999" }), complete: true };
  const changed = edited(row, `${row.text.split(" ").toReversed().join(" ")} w5999`);
  assert.equal(whole(changed), changed.text);
});

test("the place of a time is found by bisection", () => {
  const items = [{ start: 1 }, { start: 2 }, { start: 2 }, { start: 5 }];
  assert.deepEqual([0, 1, 2, 4.9, 9].map((seconds) => lastBefore(items, seconds)), [-1, 0, 2, 2, 3]);
  assert.deepEqual(wordsOf({ start: 0, end: 2, text: "ab cd" }).map((word) => word.text), ["ab ", "cd"]);
});
