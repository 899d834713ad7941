import assert from "node:assert/strict";
import { test } from "node:test";

import { i18n } from "./i18n.js";
import { SpeakerIds, Turns, freeLetter, labelled, merged, speakerColour, speakerName, turnsOf, withName } from "./speakers.js";

i18n.use("en", { speakers: { unnamed: "Speaker {id}" } });

/** A row of words, each of half a second, from `start` on. */
function row(n, start, text, more = {}) {
  const units = text.match(/\S+\s*/g);
  const words = units.map((unit, i) => ({ text: unit, start: start + i / 2, end: start + (i + 1) / 2 }));
  return { n, start, end: words.at(-1).end, text, words, complete: true, ...more };
}

const seen = (rows) => rows.map(({ n, speaker, text }) => [n, speaker, text]);

test("a speaker has the given name, or its letter, or the name that the server knows", () => {
  const names = { A: "Maria", B: "" };
  assert.deepEqual(["A", "B", "AC", "Tom"].map((id) => speakerName(id, names)), ["Maria", "Speaker B", "Speaker AC", "Tom"]);
});

test("colours follow the order of the names, and a speaker without one gets the next", () => {
  const names = { B: "", A: "" };
  assert.deepEqual(["A", "B", "Tom", "A"].map((id) => speakerColour(id, names)), [1, 0, 2, 1]);
  assert.deepEqual(Object.keys(names), ["B", "A", "Tom"]);
});

test("a new name leaves names that were given meanwhile", () => {
  const changes = withName({ A: "", B: "" }, "B", "Tom");
  assert.deepEqual(changes({ speakers: { A: "Maria" } }), { speakers: { A: "Maria", B: "Tom" } });
});

test("letters go on behind Z", () => {
  const ids = [];
  while (ids.length < 54) ids.push(freeLetter(ids));
  assert.deepEqual([ids[0], ids[25], ids[26], ids[51], ids[52]], ["A", "Z", "AA", "AZ", "BA"]);
});

test("a letter never means two people: those of a later session are free ones", () => {
  const ids = new SpeakerIds();
  ids.fresh();
  assert.deepEqual(["A", "B", "Maria", "A"].map((label) => ids.of(label)), ["A", "B", "Maria", "A"]);
  ids.fresh();
  assert.deepEqual(["A", "B", "Maria", "C", "A"].map((label) => ids.of(label)), ["C", "D", "Maria", "E", "C"]);
  const further = new SpeakerIds(["A", "Tom"]);
  assert.deepEqual([further.of("A"), further.of("B"), further.of("Tom")], ["B", "C", "Tom"]);
});

test("rows get the speaker of their time, and a row of several is split without losing a word or a time", () => {
  const rows = [row(1024, 0, "hello you there."), row(2048, 2, "yes I am here. And you? Fine.")];
  const turns = [
    { start: 0, end: 1.4, speaker: "A" },
    { start: 1.9, end: 4, speaker: "B" },
    { start: 4, end: 5, speaker: "A" },
    { start: 5, end: 5.6, speaker: "B" },
  ];
  const found = labelled(rows, new Turns(turns));
  assert.deepEqual(seen(found), [
    [1024, "A", "hello you there."],
    [2048, "B", "yes I am here."],
    [3072, "A", "And you?"],
    [4096, "B", "Fine."],
  ]);
  assert.deepEqual(found.slice(1).map(({ start, end }) => [start, end]), [[2, 4], [4, 5], [5, 5.5]]);
  for (const one of found) assert.equal(one.words.map((word) => word.text).join(""), one.text);
});

test("a row between two others is split between their keys", () => {
  const found = labelled([row(1, 0, "yes no"), row(2, 5, "so")], new Turns([{ start: 0, end: 0.5, speaker: "A" }, { start: 0.5, end: 9, speaker: "B" }]));
  assert.deepEqual(seen(found), [[1, "A", "yes"], [1.5, "B", "no"], [2, "B", "so"]]);
});

test("what was corrected or chosen by hand stays, and what has not changed is not written", () => {
  const edited = { ...row(1, 0, "corrected words"), words: undefined };
  const rows = [edited, row(2, 2, "mine", { speaker: "C", chosen: true }), row(3, 4, "known", { speaker: "B" }), row(4, 60, "not yet known")];
  const found = labelled(rows, new Turns([{ start: 0, end: 1, speaker: "A" }, { start: 2, end: 8, speaker: "B" }]));
  assert.deepEqual(found, [{ ...edited, speaker: "A" }]);
});

test("of two who speak at the same time, each word is of the one who said it, and a word put in is of its neighbours", () => {
  const [long, short] = [row(1024, 0, "so I went there and saw it"), row(2048, 1.1, "really oh", { words: undefined })];
  const words = [{ start: 1.1, end: 1.6 }, { start: 1.6, end: 2.1 }];
  const turns = new Turns([{ start: 0, end: 3.5, speaker: "A", words: long.words }, { start: 1.1, end: 2.1, speaker: "B", words }]);
  const corrected = { ...long, words: long.words.with(3, { text: "over there ", start: 1.55, end: 1.95 }), text: "so I went over there and saw it" };
  const heard = { ...short, words: words.map((word, i) => ({ ...word, text: ["really ", "oh"][i] })) };
  assert.deepEqual(seen(labelled([corrected, heard], turns)), [[1024, "A", corrected.text], [2048, "B", "really oh"]]);
});

test("a turn of nobody known leaves its rows as they are", () => {
  assert.deepEqual(labelled([row(1, 0, "who is it", { speaker: "A" })], new Turns([{ start: 0, end: 9, speaker: null }])), []);
});

test("two speakers become one", () => {
  const rows = [row(1, 0, "a", { speaker: "A" }), row(2, 1, "b", { speaker: "B" }), row(3, 2, "c", { speaker: "A" })];
  assert.deepEqual(seen(merged(rows, "A", "B")), [[1, "B", "a"], [3, "B", "c"]]);
});

test("a live line is divided into turns, also before anybody is known", () => {
  const speakers = [{ speaker: "A", text: "I think" }, { speaker: "A", text: " so" }, { speaker: null, text: " no" }];
  assert.deepEqual(turnsOf({ committed: "I think so no", speakers }), [{ speaker: "A", text: "I think so" }, { speaker: undefined, text: " no" }]);
  assert.deepEqual(turnsOf({ committed: "hello", speakers: [] }), [{ speaker: undefined, text: "hello" }]);
});
