import assert from "node:assert/strict";
import { test } from "node:test";
import { translateTranscript } from "./translation.js";

/** A store with these rows, and a server that translates by `answer(texts, number of the request)`. */
function stage(rows, answer) {
  const kept = new Map(rows.map((row) => [row.n, row]));
  const asked = [];
  globalThis.fetch = async (_, { body }) => {
    asked.push(JSON.parse(body));
    return answer(asked.at(-1).texts, asked.length, kept);
  };
  const store = { rows: async () => [...kept.values()], putRows: async (_, some) => some.forEach((row) => kept.set(row.n, row)) };
  return { store, asked, translations: () => [...kept.values()].map(({ translation }) => translation) };
}

const rows = (count) => Array.from({ length: count }, (_, n) => ({ n, start: n, end: n + 1, text: `text ${n}` }));
const right = (texts, reasons = texts.map(() => "")) =>
  Response.json({ translations: texts.map((text) => `<${text}>`), reasons, untranslated: reasons.filter(Boolean).length });

test("all rows are translated, in order, in bounded requests", async () => {
  const { store, asked, translations } = stage(rows(120), (texts) => right(texts));
  assert.equal(await translateTranscript(store, "id", "de", { source: "en" }), 0);
  assert.deepEqual(translations(), rows(120).map(({ text }) => `<${text}>`));
  assert.ok(asked.length > 1 && asked.every(({ texts }) => texts.length <= 200));
  assert.deepEqual([asked[0].target_language, asked[0].source_language], ["de", "en"]);
});

test("a row that is edited meanwhile keeps its text and gets no translation of the old one", async () => {
  const { store, translations } = stage(rows(3), (texts, _, kept) => {
    kept.set(1, { ...kept.get(1), text: "edited" });
    kept.delete(2);
    return right(texts);
  });
  assert.equal(await translateTranscript(store, "id", "de"), 2);
  assert.deepEqual(translations(), ["<text 0>", undefined]);
  assert.equal((await store.rows())[1].text, "edited");
});

test("a text that could not be translated has none; one in the target language has itself", async () => {
  const { store, translations } = stage(rows(3), (texts) => right(texts, ["unchanged", "same_language", ""]));
  assert.equal(await translateTranscript(store, "id", "de"), 1);
  assert.deepEqual(translations(), [undefined, "<text 1>", "<text 2>"]);
});

test("a failure rejects with its code, and what was translated before stays", async () => {
  const error = { error: { message: "no", code: "translation_failed" } };
  const { store, translations } = stage(rows(60), (texts, number) => (number > 1 ? Response.json(error, { status: 502 }) : right(texts)));
  await assert.rejects(translateTranscript(store, "id", "de"), { code: "translation_failed" });
  assert.equal(translations().filter(Boolean).length, 50);
});
