import assert from "node:assert/strict";
import { test } from "node:test";

import { inParagraphs, keepParagraphs } from "./paragraphs.js";
import { Store } from "./store.js";

const row = (n, text, more = {}) => ({ n, start: n, end: n + 1, text, words: [{ text, start: n, end: n + 1 }], complete: true, ...more });
const ROWS = [row(1, "And so"), row(2, "ask not."), row(5, "Why?")];

/** The server joins the rows of these groups: [[first, last]]. `asked` has the bodies of the requests. */
function answering(groups, asked = []) {
  globalThis.fetch = async (_, { body }) => {
    asked.push(JSON.parse(body));
    return new Response(JSON.stringify({ paragraphs: groups.map(([first_segment, last_segment]) => ({ first_segment, last_segment })) }));
  };
  return asked;
}

async function kept(rows, metadata = {}) {
  const store = new Store(`test ${Math.random()}`);
  await store.open();
  const { id } = await store.create({ languageCode: "en", state: "complete", ...metadata });
  await store.putRows(id, rows);
  const join = async () => keepParagraphs(store, await store.get(id));
  const texts = async () => (await store.rows(id)).map(({ text }) => text);
  return { store, id, join, texts };
}

test("rows are joined as the server says, with the times of their words", async () => {
  const asked = answering([[0, 1], [2, 2]]);
  const { store, id, join } = await kept(ROWS);
  await join();
  const [first, second] = await store.rows(id);
  assert.deepEqual([first.n, first.start, first.end, first.text], [1, 1, 3, "And so ask not."]);
  assert.deepEqual(first.words.map(({ text, start }) => [text, start]), [["And so ", 1], ["ask not.", 2]]);
  assert.deepEqual(second, ROWS[2]);
  assert.deepEqual(asked[0], { language: "en", segments: ROWS.map(({ start, end, text }) => ({ start, end, text })) });
  await join();
  assert.equal(asked.length, 1);
});

test("rows stay where the server does not answer, and are joined another time", async () => {
  globalThis.fetch = async () => { throw new TypeError("no network"); };
  const { join, texts } = await kept(ROWS);
  await join();
  assert.deepEqual(await texts(), ["And so", "ask not.", "Why?"]);
  assert.equal(await inParagraphs({}, ROWS), ROWS);
  answering([[0, 1], [2, 2]]);
  await join();
  assert.deepEqual(await texts(), ["And so ask not.", "Why?"]);
});

test("a row that is corrected meanwhile is not joined", async () => {
  const { store, id, join, texts } = await kept(ROWS);
  answering([[0, 1], [2, 2]]);
  const answer = globalThis.fetch;
  globalThis.fetch = async (...request) => {
    await store.putRows(id, [row(2, "asked not.")]);
    return answer(...request);
  };
  await join();
  assert.deepEqual(await texts(), ["And so", "asked not.", "Why?"]);
});

test("rows of a recording that may go on, and of one that is open, are not joined", async () => {
  for (const metadata of [{ state: "open" }, { state: "cut", kind: "live", live: { lines: 1 } }]) {
    const asked = answering([[0, 2]]);
    await (await kept(ROWS, metadata)).join();
    assert.equal(asked.length, 0);
  }
});

test("rows whose translations are on their way are joined when these are there", async () => {
  const rows = [row(1, "And so"), row(2, "ask not.")];
  const { store, id, join, texts } = await kept(rows, { translated: true });
  answering([[0, 1]]);
  await join(); // none has come yet
  await store.putRows(id, [{ ...rows[0], translation: "Und so" }]);
  await join();
  assert.equal((await texts()).length, 2);
  await store.putRows(id, [{ ...rows[1], translation: "fragt nicht." }]);
  await join();
  assert.deepEqual((await store.rows(id)).map(({ translation }) => translation), ["Und so fragt nicht."]);
});
