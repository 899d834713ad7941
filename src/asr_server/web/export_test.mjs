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
const options = { words: { speaker: (id) => `Speaker ${id}`, cut: "Cut off here." } };
const text = (format, rows = ROWS, more = {}) => exported(format, { ...TALK, ...more }, rows, { ...options, ...more.options }).text;
const inZip = (bytes) => Object.fromEntries(Object.entries(unzipSync(bytes)).map(([name, found]) => [name, strFromU8(found)]));

test("every format has every word in order, a name and a type", () => {
  for (const { id } of formats) {
    const file = exported(id, TALK, ROWS, options);
    const content = file.text ?? inZip(file.bytes)["word/document.xml"].replaceAll(/<[^>]*>/g, " ");
    const plain = content.replaceAll(/[\\\u2060]/g, "").replaceAll(/\s+/g, " ");
    let at = 0;
    for (const word of ["Good", "morning,", "everyone.", "Let", "us", "begin.", "After", "long", "pause."]) {
      at = plain.indexOf(word, at);
      assert.ok(at >= 0, `${id}: ${word}`);
    }
    assert.match(file.name, /^Talk_ part 1_2\.\w/);
    assert.ok(file.type.includes("/"));
  }
});

test("paragraphs end at pauses and speakers", () => {
  assert.equal(
    text("txt"),
    "Anna: Good morning, everyone. Let us begin.\n\nSpeaker b: =SUM(A1:A9) <b>& more</b>\n\nSpeaker b: After a *long* pause.\n",
  );
  assert.match(text("txt-times"), /^\[0:00\] Anna: Good.*\n\n\[0:05\] .*\n\n\[1:01:01\] /);
});

test("a long text has paragraphs that end with sentences", () => {
  const rows = Array.from({ length: 100 }, (_, i) => row(i, i, i + 1, i % 2 ? "and ends here." : "It begins there"));
  const parts = text("txt", rows).trim().split("\n\n");
  assert.ok(parts.length > 2);
  assert.ok(parts.every((part) => part.endsWith(".") && part.length < 800));
});

test("scripts without blanks are joined without blanks", () => {
  assert.equal(text("txt", [row(1, 0, 1, "今天天气很好。"), row(2, 1, 2, "我们去散步。")]), "今天天气很好。我们去散步。\n");
});

test("a text that was cut off says so", () => {
  for (const state of ["cut", "failed"])
    for (const id of ["txt", "md"]) assert.match(text(id, ROWS, { state }), /Cut off here/);
  assert.match(text("txt", [{ ...ROWS[0], complete: false }]), /Cut off here/);
  assert.match(inZip(exported("docx", { ...TALK, state: "cut" }, ROWS, options).bytes)["word/document.xml"], /Cut off here/);
  assert.doesNotMatch(text("txt"), /Cut off here/);
});

test("the translation is written beside the text, or in its place, or not at all", () => {
  assert.doesNotMatch(text("txt"), /Morgen/);
  assert.match(text("txt", ROWS, { options: { translation: "both" } }), /begin\.\nGuten Morgen zusammen\. Fangen wir an\.\n/);
  const only = text("srt", ROWS, { options: { translation: "only" } });
  assert.match(only, /Guten Morgen zusammen\./);
  assert.doesNotMatch(only, /Good/);
  assert.match(text("csv", ROWS, { options: { translation: "both" } }), /,"Fangen wir an\."\r\n/);
  assert.match(inZip(exported("docx", TALK, ROWS, { ...options, translation: "both" }).bytes)["word/document.xml"], /<w:tbl>.*Guten/);
});

test("cues have their speaker, their translation below, and no overlap", () => {
  const long = row(1, 0, 12, "one two three four five six seven eight nine ten eleven twelve ".repeat(3).trim(), {
    translation: "eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf",
    speaker: "a",
  });
  const file = text("srt", [long, ROWS[3]], { options: { translation: "both" } });
  const cues = [...file.matchAll(/^(\S+) --> (\S+)\n(.+(?:\n.+)*)\n\n/gm)];
  assert.ok(cues.length > 2);
  cues.slice(1).forEach((cue, i) => assert.ok(cue[1] >= cues[i][2]));
  assert.match(cues[0][3], /^Anna: one/);
  const german = cues.map(([, , , lines]) => lines.split("\n").at(-1)).slice(0, -1);
  assert.equal(german.join(" "), long.translation);
});

test("no cell of the table is a formula, and quotes keep it in its cell", () => {
  const texts = ["=1+1", "+1", "-1", "@x", " =1", "\t=1", "＝1", 'say "hi", or\nnot'];
  const lines = text("csv", texts.map((cell, i) => row(i, i, i + 1, cell))).slice(1).split("\r\n");
  assert.equal(lines[0], "start,end,speaker,text");
  texts.slice(0, -1).forEach((cell, i) => assert.equal(lines[i + 1], `${i}.000,${i + 1}.000,"","'${cell}"`));
  assert.equal(lines[8], '7.000,8.000,"","say ""hi"", or\nnot"');
});

test("Markdown shows the text as it is", () => {
  const written = text("md", [row(1, 0, 1, "# no *head* [link](x) <i>"), row(2, 9, 10, "1. no list")]);
  assert.match(written, /^# Talk: part 1\/2\.mp4\n\n2026-11-23 · 1:01:10 · English\n\n/);
  assert.match(written, /\\# no \\\*head\\\* \\\[link\\\]\(x\) \\<i\\>/);
  assert.match(written, /1\\\. no list/);
});

test("the JSON has words with times and confidence", () => {
  const found = JSON.parse(text("json"));
  assert.equal(found.segments.length, 4);
  assert.deepEqual(found.segments[1].words[0], { word: "Let", start: 3.2, end: 3.8000000000000003, confidence: 0.5 });
  assert.deepEqual([found.duration, found.language_code, found.state, found.segments[0].speaker], [3670, "en", "complete", "Anna"]);
});

test("the document is XML whatever the text holds", () => {
  const odd = "a\u0000b\ud800c\u001f<w:t>&amp;]]>\ufffe 😀 مرحبا";
  const xml = inZip(exported("docx", { ...TALK, title: odd }, [row(1, 0, 1, odd), row(2, 5, 6, "مرحبا بكم")], options).bytes)["word/document.xml"];
  assert.doesNotMatch(xml, /[\u0000-\u0008\u000b\u001f\ufffe]|\ud800(?![\udc00-\udfff])/);
  assert.ok(xml.includes("abc&lt;w:t&gt;&amp;amp;]]&gt; 😀 مرحبا"));
  assert.match(xml, /<w:bidi\/>.*<w:rtl\/>.*مرحبا بكم/);
});

test("names of files are safe on every system", () => {
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
  const all = inZip(new Uint8Array(await (await zipOf(three, options)).arrayBuffer()));
  assert.ok(all["other/other.srt"].startsWith("1\n00:00:00,500 --> "));
  assert.equal(Object.keys(all).length, 12);
});

test("cues name their speaker: WebVTT each in a tag, SubRip before the text within its width", () => {
  const rows = [row(1, 0, 4, "one two three four five six seven eight nine ten eleven", { speaker: "a" }), row(2, 5, 6, "yes", { speaker: "a" }), row(3, 7, 8, "no", { speaker: "b" })];
  const speakers = { a: "Anna & <Co>" };
  assert.deepEqual(text("vtt", rows, { speakers }).match(/^<v .*?>/gm), ["<v Anna &amp; &lt;Co&gt;>", "<v Anna &amp; &lt;Co&gt;>", "<v Speaker b>"]);
  const lines = text("srt", rows, { speakers: { a: "Professor Anna Maria of the Faculty" } }).split("\n");
  assert.deepEqual(lines.filter((line) => line.includes(": ")), ["Professor Anna Maria of the Faculty: one", "Speaker b: no"]);
  assert.ok(lines.every((line) => line.length <= 42));
});
