import assert from "node:assert/strict";
import { test } from "node:test";
import { Keeper, LINE_STEP } from "./live-keeper.js";
import { dropUnfinished, interrupted, keepTail, restoreTails } from "./live-recovery.js";
import { Store } from "./store.js";
import { rowsOf } from "./transcript.js";

const SECOND = 32_000; // bytes
const sound = (from, until) => Uint8Array.from({ length: until - from }, (_, i) => ((from + i) * 7) % 251);
const line = (key, start, end, text, more = {}) => ({ key, start, end, committed: text, tentative: "", final: true, ...more });
const texts = (rows) => rows.map(({ text }) => text);

/** As in browsers, the names are properties. */
class LocalStorage {
  getItem(name) {
    return this[name] ?? null;
  }
  setItem(name, value) {
    this[name] = String(value);
  }
  removeItem(name) {
    delete this[name];
  }
}

async function begun(more = {}) {
  const store = new Store(`test ${Math.random()}`);
  await store.open();
  const { id } = await store.create({ kind: "live", state: "open" });
  return { store, id, keeper: new Keeper(store, id, { cut: rowsOf, bytesPerSecond: SECOND, ...more }) };
}

async function stored(store, id) {
  const blob = await store.sound(id);
  return blob ? new Uint8Array(await blob.arrayBuffer()).subarray(44) : new Uint8Array();
}

/** Record `sound(0, bytes)` in blocks as a microphone gives them. */
function record(keeper, bytes) {
  for (let at = 0; at < bytes; at += 1366) keeper.sound(sound(at, Math.min(bytes, at + 1366)));
}

test("a page that goes away at any byte has lost none of them at its next visit", async () => {
  for (const bytes of [1366, SECOND, SECOND + 2, 5 * SECOND - 2, 5 * SECOND + 7000]) {
    for (const written of [false, true]) {
      const { store, id, keeper } = await begun();
      record(keeper, bytes);
      if (written) await new Promise((resolve) => setTimeout(resolve, 5)); // the store takes what was queued
      const kept = new LocalStorage();
      keepTail(kept, keeper.tail());
      await new Promise((resolve) => setTimeout(resolve, 5)); // or it takes it after the tail was kept
      await restoreTails(store, kept);
      assert.deepEqual(await stored(store, id), sound(0, bytes), `${bytes} ${written}`);
      assert.deepEqual(Object.keys(kept), []);
    }
  }
});

test("a read of the storage that fails is reported, and ends the sound but not the rows", async () => {
  const { store, id, keeper } = await begun();
  const codes = [];
  store.onproblem((code) => codes.push(code));
  store.usage = () => Promise.reject(new Error("closed"));
  store.rowsAt = async (_, ns) => ns.map(() => JSON.parse("damaged"));
  record(keeper, SECOND);
  for (const text of ["one", "one", "two"]) keeper.line(line(text, 0, 1, text));
  await keeper.settle();
  assert.equal(keeper.full, true);
  assert.ok(codes.length > 1 && codes.every((code) => code === "storage_failed"));
  assert.equal((await store.rows(id)).at(-1).text, "two");
});

test("tabs that are closed together keep the tail of each recording, and leave other names alone", async () => {
  const [one, two] = [await begun(), await begun()];
  const kept = new LocalStorage();
  kept.setItem("language", "de");
  record(one.keeper, 500);
  record(two.keeper, 700);
  keepTail(kept, one.keeper.tail());
  keepTail(kept, two.keeper.tail());
  keepTail(kept, null);
  await restoreTails(one.store, kept);
  assert.deepEqual(await stored(one.store, one.id), sound(0, 500));
  assert.deepEqual(Object.keys(kept), ["language"]);
});

test("what the store has taken is not in the tail", async () => {
  const { keeper } = await begun();
  record(keeper, 3 * SECOND);
  await keeper.settle();
  assert.equal(keeper.tail(), null);
});

test("a store that is full keeps the beginning of the sound, and the rows go on", async () => {
  const { store, id, keeper } = await begun();
  let full = 0;
  keeper.onfull = () => (full += 1);
  record(keeper, 2 * SECOND);
  await keeper.settle();
  const before = (await stored(store, id)).length;
  store.appendSound = async () => false;
  record(keeper, 4 * SECOND);
  await keeper.settle();
  keeper.line(line("1.1", 5, 6, "Still here."));
  await keeper.settle();
  assert.equal((await stored(store, id)).length, before);
  assert.deepEqual([full, keeper.full, keeper.soundEnd], [1, true, 6 * SECOND]);
  assert.equal(keeper.tail(), null);
  assert.deepEqual(texts(await store.rows(id)), ["Still here."]);
});

test("lines become rows in order, and words give them their times", async () => {
  const { store, id, keeper } = await begun();
  keeper.line(line("1.1", 0, 2, "hello you"));
  keeper.line(line("1.2", 3, 5, "and you"));
  keeper.line(line("1.3", 6, 7, " "));
  keeper.words("1.1", [{ word: "hello", start: 0.25, end: 0.5 }, { word: "you", start: 0.75, end: 1 }]);
  await keeper.settle();
  const rows = await store.rows(id);
  assert.deepEqual(texts(rows), ["hello you", "and you"]);
  assert.deepEqual(rows[0].words.map(({ text, start }) => [text, start]), [["hello ", 0.25], ["you", 0.75]]);
  assert.deepEqual((await store.get(id)).live, { lines: 2, finalEnd: 7 });
});

test("rows that the words cut anew replace the old ones, and keep their translations where the text is the same", async () => {
  const { store, id, keeper } = await begun();
  const text = `${[1, 2, 3, 4, 5].map((n) => `The lamp in the room ${n} is on again as it was. `).join("")}${"And now it is off. ".repeat(6)}`.trim();
  const old = keeper.line(line("1.1", 0, 24, text));
  keeper.translated(old[0].n, old[0].text, "Die Lampe");
  // A pause within a row.
  const words = text.split(" ").map((word, i) => ({ word, start: i < 70 ? i / 4 : 3 + i / 4, end: (i < 70 ? i / 4 : 3 + i / 4) + 0.2 }));
  const rows = keeper.words("1.1", words);
  await keeper.settle();
  assert.notDeepEqual(texts(rows), texts(old));
  assert.deepEqual(texts(await store.rows(id)), texts(rows));
  assert.equal(texts(rows).join(" "), text);
  assert.equal(rows[0].text, old[0].text);
  assert.deepEqual(rows.map(({ translation }) => translation).filter(Boolean), ["Die Lampe"]);
});

test("a translation is stored with its row, and one of an old text is not", async () => {
  const { store, id, keeper } = await begun();
  const [{ n }] = keeper.line(line("1.1", 0, 2, "hello you"));
  assert.equal(keeper.translated(n, "hello you", "hallo du"), "1.1");
  assert.equal(keeper.translated(n, "hello", "hallo"), "");
  await keeper.settle();
  assert.deepEqual((await store.rows(id)).map((row) => row.translation), ["hallo du"]);
});

test("an interrupted recording goes on behind its last final, without the rows that come again", async () => {
  const { store, id, keeper } = await begun();
  record(keeper, 3 * SECOND);
  keeper.line(line("1.1", 0, 1.5, "hello you"));
  keeper.line({ key: "1.2", start: 1.75, end: 2.5, committed: "and", tentative: " you", final: false });
  const kept = new LocalStorage();
  keepTail(kept, keeper.tail());
  await keeper.settle();
  assert.equal(await interrupted(store), null); // its page is still there
  await store.update(id, { state: "cut" });
  await restoreTails(store, kept);
  const found = await interrupted(store);
  assert.deepEqual(found.rows.map(({ text, complete }) => [text, complete]), [["hello you", true], ["and you", false]]);
  assert.deepEqual([found.from, found.soundBytes, found.lines], [1.5 * SECOND, 3 * SECOND, 1]);
  await dropUnfinished(store, found);
  assert.deepEqual(texts(await store.rows(id)), ["hello you"]);
  const { soundBytes: soundEnd, lines, finalEnd } = found;
  const next = new Keeper(store, id, { cut: rowsOf, bytesPerSecond: SECOND, soundEnd, lines, finalEnd });
  const [row] = next.line(line("1.1", 1.75, 3, "and you too"));
  assert.ok(row.n > LINE_STEP);
  await next.settle();
  assert.deepEqual(texts(await store.rows(id)), ["hello you", "and you too"]);
});

test("a line that never becomes final is kept as one that is not complete", async () => {
  const { store, id, keeper } = await begun();
  keeper.line({ key: "1.1", start: 0, end: 1, committed: "turn", tentative: " on", final: false });
  assert.equal(keeper.keepOpen(), true);
  assert.equal(keeper.keepOpen(), false);
  await keeper.settle();
  assert.deepEqual((await store.rows(id)).map(({ text, complete }) => [text, complete]), [["turn on", false]]);
});

const runs = (...pairs) => pairs.map(([speaker, text]) => ({ speaker, text }));
const seen = (rows) => rows.map(({ speaker, text }) => [speaker, text]);
const SAID = "I think so no you do";

test("speakers of a line cut its rows, and what is known better later cuts them anew", async () => {
  const { store, id, keeper } = await begun();
  keeper.line(line("1.1", 0, 7, SAID, { speakers: runs([null, SAID]) }));
  keeper.line(line("1.2", 8, 9, "well", { speakers: runs(["B", "well"]) }));
  await keeper.settle();
  assert.deepEqual(seen(await store.rows(id)), [[undefined, SAID], ["B", "well"]]);
  keeper.speakers("1.1", runs(["A", "I think so no"], ["B", " you do"]));
  keeper.words("1.1", SAID.split(" ").map((word, i) => ({ word, start: i, end: i + 0.5, speaker: "A" })));
  keeper.speakers("1.1", runs(["A", "I think so"], ["B", " no you do"]));
  await keeper.settle();
  const rows = await store.rows(id);
  assert.deepEqual(seen(rows), [["A", "I think so"], ["B", "no you do"], ["B", "well"]]);
  assert.deepEqual(rows.map(({ start }) => start), [0, 3, 8]);
  assert.deepEqual(Object.keys((await store.get(id)).speakers), ["B", "A"]);
});

test("rows that were corrected keep that when their speakers become known, and the translation of the old text is dropped", async () => {
  const { store, id, keeper } = await begun();
  const [put] = keeper.line(line("1.1", 0, 7, SAID, { speakers: runs([null, SAID]) }));
  keeper.line(line("1.2", 8, 9, "mine", { speakers: runs(["A", "mine"]) }));
  await keeper.settle();
  const [first, second] = await store.rows(id);
  await store.putRows(id, [{ ...first, text: "I think sew no you do" }, { ...second, speaker: "C", chosen: true }]);
  assert.equal(keeper.translated(put.n, SAID, "Ich denke schon nein du"), "1.1");
  keeper.speakers("1.1", runs(["A", "I think so"], ["B", " no you do"]));
  keeper.speakers("1.2", runs(["B", "mine"]));
  await keeper.settle();
  const rows = await store.rows(id);
  assert.deepEqual(seen(rows), [["A", "I think sew"], ["B", "no you do"], ["C", "mine"]]);
  assert.equal(rows[0].n, first.n);
  assert.ok(rows.every(({ translation }) => translation === undefined));
});

test("the open line is kept with what is known of its speakers", async () => {
  const { store, id, keeper } = await begun();
  keeper.line({ key: "1.1", start: 0, end: 3, committed: "turn on", tentative: " no", final: false, speakers: runs([null, "turn on"]) });
  keeper.speakers("1.1", runs(["A", "turn on"]));
  assert.equal(keeper.keepOpen(), true);
  await keeper.settle();
  assert.deepEqual(seen(await store.rows(id)), [["A", "turn on no"]]);
});
