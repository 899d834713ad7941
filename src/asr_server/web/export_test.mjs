import assert from "node:assert/strict";
import { test } from "node:test";
import { exported, fileName, formats, zipOf } from "./export.js";
import { strFromU8, unzipSync } from "./vendor/fflate.js";

const words = (text, start, end) => {
  const units = text.match(/\S+\s*/g);
  const step = (end - start) / units.length;
  return units.map((unit, i) => ({ text: unit, start: start + i * step, end: start + (i + 1) * step, confidence: 0.5 }));
};
const row = (n, start, end, text, more = {}) => ({ n, start, end, text, words: words(text, start, end), complete: true, ...more });
const ROWS = [
  row(1, 0.5, 3, "Good morning, everyone.", { speaker: "a", translation: "Guten Morgen zusammen." }),
  row(2, 3.2, 5, "Let us begin.", { speaker: "a", translation: "Fangen wir an." }),
  row(3, 5.1, 7, "=SUM(A1:A9) <b>& more</b>", { speaker: "b" }),
  row(4, 3661, 3664, "After a *long* pause.", { speaker: "b" }),
];
const TALK = {
  id: "x",
  title: "Talk: part 1/2.mp4",
  createdAt: Date.UTC(2026, 10, 23, 12),
  changedAt: Date.UTC(2026, 10, 23, 13),
  durationS: 3670,
  language: "English",
  languageCode: "en",
  model: "m",
  state: "complete",
  speakers: { a: "Anna" },
};
const WRITTEN_BY_SERVER = ["docx", "md"];
const options = { words: { speaker: (id) => `Speaker ${id}`, cut: "Cut off here." } };
const text = async (format, rows = ROWS, more = {}) => (await exported(format, { ...TALK, ...more }, rows, { ...options, ...more.options })).text;
const inZip = (bytes) => Object.fromEntries(Object.entries(unzipSync(bytes)).map(([name, found]) => [name, strFromU8(found)]));

test("every format has every word in order, a name and a type", async () => {
  for (const { id } of formats.filter(({ id }) => !WRITTEN_BY_SERVER.includes(id))) {
    const file = await exported(id, TALK, ROWS, options);
    const plain = file.text.replaceAll(/[\\\u2060]/g, "").replaceAll(/\s+/g, " ");
    let at = 0;
    for (const word of ["Good", "morning,", "everyone.", "Let", "us", "begin.", "After", "long", "pause."]) {
      at = plain.indexOf(word, at);
      assert.ok(at >= 0, `${id}: ${word}`);
    }
    assert.match(file.name, /^Talk_ part 1_2\.\w/);
    assert.ok(file.type.includes("/"));
  }
});

test("each row is a paragraph", async () => {
  assert.equal(
    await text("txt"),
    "Anna: Good morning, everyone.\n\nAnna: Let us begin.\n\nSpeaker b: =SUM(A1:A9) <b>& more</b>\n\nSpeaker b: After a *long* pause.\n",
  );
  assert.match(await text("txt-times"), /^\[0:00\] Anna: Good.*\n\n\[0:03\] Anna: .*\n\n\[0:05\] .*\n\n\[1:01:01\] /);
});

test("a text that was cut off says so", async () => {
  for (const state of ["cut", "failed"])
    assert.match(await text("txt", ROWS, { state }), /Cut off here/);
  assert.match(await text("txt", [{ ...ROWS[0], complete: false }]), /Cut off here/);
  assert.doesNotMatch(await text("txt"), /Cut off here/);
});

test("the translation is written beside the text, or in its place, or not at all", async () => {
  assert.doesNotMatch(await text("txt"), /Morgen/);
  assert.match(await text("txt", ROWS, { options: { translation: "both" } }), /begin\.\nFangen wir an\.\n/);
  const only = await text("srt", ROWS, { options: { translation: "only" } });
  assert.match(only, /Guten Morgen zusammen\./);
  assert.doesNotMatch(only, /Good/);
  assert.match(await text("csv", ROWS, { options: { translation: "both" } }), /,"Fangen wir an\."\r\n/);
});

test("cues have their speaker, their translation below, and no overlap", async () => {
  const long = row(1, 0, 12, "one two three four five six seven eight nine ten eleven twelve ".repeat(3).trim(), {
    translation: "eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf",
    speaker: "a",
  });
  const file = await text("srt", [long, ROWS[3]], { options: { translation: "both" } });
  const cues = [...file.matchAll(/^(\S+) --> (\S+)\n(.+(?:\n.+)*)\n\n/gm)];
  assert.ok(cues.length > 2);
  cues.slice(1).forEach((cue, i) => assert.ok(cue[1] >= cues[i][2]));
  assert.match(cues[0][3], /^Anna: one/);
  const german = cues.map(([, , , lines]) => lines.split("\n").at(-1)).slice(0, -1);
  assert.equal(german.join(" "), long.translation);
});

test("no cell of the table is a formula, and quotes keep it in its cell", async () => {
  const texts = ["=1+1", "+1", "-1", "@x", " =1", "\t=1", "＝1", 'say "hi", or\nnot'];
  const lines = (await text("csv", texts.map((cell, i) => row(i, i, i + 1, cell)))).slice(1).split("\r\n");
  assert.equal(lines[0], "start,end,speaker,text");
  texts.slice(0, -1).forEach((cell, i) => assert.equal(lines[i + 1], `${i}.000,${i + 1}.000,"","'${cell}"`));
  assert.equal(lines[8], '7.000,8.000,"","say ""hi"", or\nnot"');
});

test("the JSON has words with times and confidence", async () => {
  const found = JSON.parse(await text("json"));
  assert.equal(found.segments.length, 4);
  assert.deepEqual(found.segments[1].words[0], { word: "Let", start: 3.2, end: 3.8000000000000003, confidence: 0.5 });
  assert.deepEqual([found.duration, found.language_code, found.state, found.segments[0].speaker], [3670, "en", "complete", "Anna"]);
});

test("names of files are safe on every system", async () => {
  assert.equal(fileName("../../etc/passwd"), "_.._etc_passwd");
  assert.equal(fileName("CON"), "_CON");
  assert.equal(fileName("..."), "transcript");
  assert.equal(fileName("a".repeat(300)).length, 100);
  assert.equal(fileName("Meeting v1.2 final.m4a"), "Meeting v1.2 final");
});

test("a zip has every file under its own name", async () => {
  const three = [TALK, TALK, { ...TALK, title: "other" }].map((transcript) => ({ transcript, rows: ROWS }));
  const one = await zipOf(three, options, ["txt"]);
  assert.deepEqual(Object.keys(inZip(new Uint8Array(await one.arrayBuffer()))), ["Talk_ part 1_2.txt", "Talk_ part 1_2 (2).txt", "other.txt"]);
  const all = inZip(new Uint8Array(await (await zipOf(three, options, ["txt", "srt", "csv", "json"])).arrayBuffer()));
  assert.ok(all["other/other.srt"].startsWith("1\n00:00:00,500 --> "));
  assert.equal(Object.keys(all).length, 12);
});

test("cues name their speaker: WebVTT each in a tag, SubRip before the text within its width", async () => {
  const rows = [row(1, 0, 4, "one two three four five six seven eight nine ten eleven", { speaker: "a" }), row(2, 5, 6, "yes", { speaker: "a" }), row(3, 7, 8, "no", { speaker: "b" })];
  const speakers = { a: "Anna & <Co>" };
  assert.deepEqual((await text("vtt", rows, { speakers })).match(/^<v .*?>/gm), ["<v Anna &amp; &lt;Co&gt;>", "<v Anna &amp; &lt;Co&gt;>", "<v Speaker b>"]);
  const lines = (await text("srt", rows, { speakers: { a: "Professor Anna Maria of the Faculty" } })).split("\n");
  assert.deepEqual(lines.filter((line) => line.includes(": ")), ["Professor Anna Maria of the Faculty: one", "Speaker b: no"]);
  assert.ok(lines.every((line) => line.length <= 42));
});
