import assert from "node:assert/strict";
import { test } from "node:test";
import { cuesOf, escaped, pieces, srt, timestamp, vtt, width } from "./subtitles.js";

const LONG = "the quick brown fox jumps over the lazy dog and then it runs away from all of them, because it is late. ".repeat(4).trim();
const TEXTS = {
  english: LONG,
  chinese: "今天天气很好，我们一起去公园散步吧。明天可能会下雨，所以要记得带伞。".repeat(4),
  thai: "วันนี้อากาศดีมากเราไปเดินเล่นกันเถอะ".repeat(6),
  word: "a".repeat(150),
  quoted: "he said “hello (again)” and left—quickly… 3.5 times, didn't he?",
};
const segment = (text, start = 3, end = 33) => ({ text, start, end });
const bare = (text) => text.replaceAll(/\s/g, "");
const seconds = (stamp) => {
  const [h, m, s] = stamp.replace(",", ".").split(":");
  return 3600 * h + 60 * m + Number(s);
};
const parsed = (text) => [...text.matchAll(/^(\d[\d:.,]+) --> (\d[\d:.,]+)\n(.+(?:\n.+)*)\n\n/gm)].map(([, a, b, t]) => ({ start: seconds(a), end: seconds(b), text: t }));

test("no letter is lost or added, in any script", () => {
  for (const text of Object.values(TEXTS)) {
    assert.equal(pieces(segment(text)).map((piece) => piece.text).join(""), text);
    assert.equal(bare(cuesOf([segment(text)]).map((cue) => cue.text).join("")), bare(text));
  }
});

test("words are not broken", () => {
  const found = cuesOf([segment(LONG)]).flatMap((cue) => cue.text.split(/\s+/));
  assert.deepEqual(found, LONG.split(/\s+/));
});

test("cues have two lines of 42 columns, seven seconds, and an order without overlaps", () => {
  for (const name of ["english", "chinese", "thai", "quoted"]) {
    const cues = cuesOf([segment(TEXTS[name]), segment(TEXTS[name], 33, 63)]);
    cues.forEach((cue, i) => {
      const lines = cue.text.split("\n");
      assert.ok(lines.length <= 2 && lines.every((line) => width(line) <= 42), `${name}: ${cue.text}`);
      assert.ok(cue.end > cue.start && cue.end - cue.start <= 7.01, `${name}: ${cue.start} ${cue.end}`);
      if (i) assert.ok(cue.start >= cues[i - 1].end);
    });
    assert.equal(cues[0].start, 3);
    assert.ok(Math.abs(cues.at(-1).end - 63) < 1e-6);
  }
});

test("a correction of several lines breaks no file", () => {
  const text = "one\n\n2\n00:00:00,000 --> 00:00:01,000\ntwo <i>three</i>\u0000 {\\an8}four";
  const cues = cuesOf([segment(text)]);
  const shown = "one 2 00:00:00,000 --> 00:00:01,000 two <i>three</i> {\\an8}four";
  assert.equal(cues.map((cue) => cue.text.replaceAll("\n", " ")).join(" "), shown);
  const written = srt(cues);
  assert.deepEqual(parsed(written).map((cue) => cue.text.replaceAll("\u2060", "")), cues.map((cue) => cue.text));
  assert.equal(written.match(/-->/g).length, cues.length);
  assert.doesNotMatch(written, /<i|\{\\/);
  assert.equal(parsed(vtt(cues)).length, cues.length);
});

test("marks take no columns, emoji two", () => {
  assert.deepEqual(["e\u0301", "ที่", "مُحَمَّد", "😀", "a\u200db"].map(width), [1, 1, 4, 2, 2]);
});

test("known word times are kept, and spaces and marks stay with their words", () => {
  const words = [{ text: "Turn", start: 1, end: 1.2 }, { text: "on", start: 1.5, end: 1.6 }, { text: "lights", start: 1.7, end: 2 }];
  const found = pieces({ text: "Turn on, lights!", start: 0, end: 3, words });
  assert.deepEqual(found, [{ text: "Turn ", start: 1, end: 1.2 }, { text: "on, ", start: 1.5, end: 1.6 }, { text: "lights!", start: 1.7, end: 2 }]);
  assert.deepEqual(cuesOf([{ text: "Turn on, lights!", start: 0, end: 3, words }]), [{ start: 1, end: 2, text: "Turn on, lights!" }]);
});

test("where word times of two segments overlap, the first cue gives way", () => {
  const heard = (word, start, end) => ({ text: word, start, end, words: [{ text: word, start, end }] });
  const cues = cuesOf([heard("one", 0, 2.5), heard("two", 2, 3)]);
  assert.deepEqual(cues.map(({ start, end }) => [start, end]), [[0, 2], [2, 3]]);
});

test("word times that are not of this text are not used", () => {
  const [first] = pieces({ text: "hello you", start: 2, end: 4, words: [{ text: "other", start: 9, end: 10 }] });
  assert.equal(first.start, 2);
});

test("what is written can be read back, to the millisecond", () => {
  const cues = cuesOf([segment(LONG, 3599.2, 3630.75)]);
  for (const text of [srt(cues), vtt(cues)]) {
    const back = parsed(text);
    assert.deepEqual(back.map((cue) => cue.text), cues.map((cue) => cue.text));
    back.forEach((cue, i) => assert.ok(Math.abs(cue.start - cues[i].start) <= 0.00051 && Math.abs(cue.end - cues[i].end) <= 0.00051));
  }
  assert.ok(vtt(cues).startsWith("WEBVTT\n\n"));
  assert.ok(srt(cues).startsWith("1\n00:59:59,200 --> "));
});

test("times carry over at every border", () => {
  assert.equal(timestamp(0, "."), "00:00:00.000");
  assert.equal(timestamp(59.9996, ","), "00:01:00,000");
  assert.equal(timestamp(3599.999, "."), "00:59:59.999");
  assert.equal(timestamp(360_000, "."), "100:00:00.000");
});

test("what WebVTT reserves is written out, in SRT not", () => {
  const cues = [{ start: 0, end: 1, text: "a < b & c --> d" }];
  assert.equal(escaped("<i>&"), "&lt;i&gt;&amp;");
  assert.ok(vtt(cues).includes("a &lt; b &amp; c --&gt; d"));
  assert.ok(srt(cues).replaceAll("\u2060", "").includes("a < b & c --> d"));
});

test("no segments are no cues", () => {
  assert.deepEqual(cuesOf([]), []);
  assert.equal(srt([]), "");
  assert.equal(vtt([]), "WEBVTT\n\n");
});

test("a correction with blank lines in it stays one cue", () => {
  const segment = { start: 0, end: 4, text: "first\n\n00:00:00,000 --> 00:00:01,000\nsecond" };
  const cues = cuesOf([segment]);
  assert.equal(srt(cues).trim().split(/\n\n/).length, cues.length);
});

test("with a segment more only that one is cut into cues", () => {
  let read = 0;
  const segment = (start) => ({ start, end: start + 1, get text() { return (read += 1), "turn on the lights"; } });
  const segments = [segment(0), segment(1)];
  const before = cuesOf(segments);
  const once = read;
  segments.push(segment(2));
  assert.deepEqual(cuesOf(segments).slice(0, 2), before);
  assert.equal(read, 1.5 * once);
});

test("cues end at pauses, behind a sentence also at short ones", () => {
  const words = [["Yes.", 0, 1], ["No,", 1.5, 2], ["well", 2.9, 3.2], ["then", 4.2, 5]].map(([text, start, end]) => ({ text, start, end }));
  const cues = cuesOf([{ start: 0, end: 5, text: "Yes. No, well then", words }]);
  assert.deepEqual(cues.map(({ text }) => text), ["Yes.", "No, well", "then"]);
});
