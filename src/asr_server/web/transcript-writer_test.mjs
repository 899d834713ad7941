import assert from "node:assert/strict";
import { test } from "node:test";

import { Store } from "./store.js";
import { Writer } from "./transcript-writer.js";

/** A segment of words of half a second each. */
function segment(start, text, more = {}) {
  const words = text.split(" ").map((word, i) => ({ word: word.replace(/\W$/, ""), start: start + i / 2, end: start + (i + 1) / 2 }));
  return { start, end: words.at(-1).end, text, words, language: "English", complete: true, ...more };
}

async function begun() {
  const store = new Store(`test ${Math.random()}`);
  await store.open();
  const { id } = await store.create({});
  return { store, id, writer: new Writer(store, id) };
}

const seen = async (store, id) => (await store.rows(id)).map(({ speaker, text }) => [speaker, text]);

/** The segments without and, at the end, with their speakers. */
function told(writer, segments) {
  for (const { speaker, ...one } of segments) writer.segment(one);
  for (const one of segments) assert.equal(writer.segment(one), 0);
}

test("rows have the speakers that come at the end, and the transcript lists them in their order", async () => {
  const { store, id, writer } = await begun();
  told(writer, [[0, "Hello you.", "B"], [2, "Hello.", "A"], [4, "Well.", null]].map(([start, text, speaker]) => segment(start, text, { speaker })));
  await writer.close();
  assert.deepEqual(await seen(store, id), [["B", "Hello you."], ["A", "Hello."], [undefined, "Well."]]);
  const { speakers, language, languageCode } = await store.get(id);
  assert.deepEqual([Object.entries(speakers), language, languageCode], [[["B", ""], ["A", ""]], "English", "en"]);
});

test("what is said at the same time on another channel is put in its place and has its speaker", async () => {
  const { store, id, writer } = await begun();
  const long = "one two three four. ".repeat(8).trim();
  told(writer, [segment(0, long, { speaker: "A" }), segment(3.1, "Yes.", { speaker: "B" }), segment(20, "Go on.", { speaker: "B" })]);
  await writer.close();
  const rows = await store.rows(id);
  const starts = rows.map(({ start }) => start);
  assert.deepEqual(starts, [...starts].sort((a, b) => a - b));
  assert.equal(new Set(rows.map(({ n }) => n)).size, rows.length);
  const said = (speaker) => rows.filter((row) => row.speaker === speaker).map(({ text }) => text);
  assert.deepEqual([said("A").join(" "), said("B")], [long, ["Yes.", "Go on."]]);
});

test("text that comes before its speakers is kept as it was corrected meanwhile, with its keys", async () => {
  const { store, id, writer } = await begun();
  assert.equal(writer.segment(segment(0, "hello you all. yes indeed")), 1);
  assert.equal(writer.segment(segment(4, "and so on")), 1);
  await writer.update({});
  await new Promise((resolve) => setTimeout(resolve, 5));
  const [first, second] = await store.rows(id);
  await store.putRows(id, [{ ...second, text: "and so forth", words: undefined }]);
  await store.update(id, { speakers: { A: "Maria" } });
  for (const [start, text, speaker] of [[0, "hello you all.", "A"], [1.5, "yes indeed", "B"], [4, "and so on", "A"]]) assert.equal(writer.segment(segment(start, text, { speaker })), 0);
  await writer.close();
  assert.deepEqual(await seen(store, id), [["A", "hello you all."], ["B", "yes indeed"], ["A", "and so forth"]]);
  const ns = (await store.rows(id)).map(({ n }) => n);
  assert.deepEqual([ns[0], ns[2]], [first.n, second.n]);
  assert.deepEqual((await store.get(id)).speakers, { A: "Maria", B: "" });
});

test("hundreds of rows get their speakers, each row of two speakers a key of its own", async () => {
  const { store, id, writer } = await begun();
  const starts = Array.from({ length: 250 }, (_, i) => 2 * i);
  for (const start of starts) writer.segment(segment(start, "yes no"));
  for (const start of starts) for (const [at, text, speaker] of [[start, "yes", "A"], [start + 0.5, "no", "B"]]) writer.segment(segment(at, text, { speaker }));
  await writer.close();
  assert.deepEqual(await seen(store, id), starts.flatMap(() => [["A", "yes"], ["B", "no"]]));
});

test("where a stream breaks off before all speakers are known, the others stay unknown", async () => {
  const { store, id, writer } = await begun();
  writer.segment(segment(0, "hello you."));
  writer.segment(segment(30, "and you."));
  writer.segment(segment(0, "hello you.", { speaker: "A" }));
  await writer.close();
  assert.deepEqual(await seen(store, id), [["A", "hello you."], [undefined, "and you."]]);
});

test("a span without words makes no row", async () => {
  const { store, id, writer } = await begun();
  assert.equal(writer.segment({ start: 3, end: 5, text: "", language: "" }), 0);
  await writer.close();
  assert.deepEqual(await store.rows(id), []);
});
