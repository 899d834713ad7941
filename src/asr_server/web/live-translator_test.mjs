import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { LiveTranslator } from "./live-translator.js";

let later = null;
globalThis.setTimeout = (what) => ((later = what), 1);
globalThis.clearTimeout = () => (later = null);
beforeEach(() => (later = null));

const settled = () => new Promise((resolve) => setImmediate(resolve));

/** A translator whose requests are answered by hand. */
function made(target = "German") {
  const [asked, shown, problems] = [[], [], []];
  const translate = (texts, language) => new Promise((resolve, reject) => asked.push({ texts, language, resolve, reject }));
  const translator = new LiveTranslator(translate, {
    translated: (n, text, translation) => shown.push([n, translation]),
    problem: (problem) => problems.push(problem?.code ?? null),
  });
  translator.target = target;
  return { translator, asked, shown, problems };
}

const upper = (asked) => asked.resolve(asked.texts.map((text) => text.toUpperCase()));

test("rows that come during a request go together into the next one", async () => {
  const { translator, asked, shown } = made();
  for (const n of [1, 2, 3]) translator.add(n, `row ${n}`);
  assert.deepEqual(asked.map(({ texts }) => texts), [["row 1"]]);
  upper(asked[0]);
  await settled();
  assert.deepEqual(asked[1].texts, ["row 2", "row 3"]);
  upper(asked[1]);
  await settled();
  assert.deepEqual(shown, [[1, "ROW 1"], [2, "ROW 2"], [3, "ROW 3"]]);
});

test("a failure is said once more after each try, then the rows are let go and the next row is tried", async () => {
  const { translator, asked, shown, problems } = made();
  translator.add(1, "one");
  for (let tries = 0; tries < 4; tries++) {
    asked.at(-1).reject({ code: "translation_failed" });
    await settled();
    later?.();
  }
  assert.equal(asked.length, 4);
  assert.equal(problems.at(-1), "translation_failed");
  translator.add(2, "two");
  assert.deepEqual(asked.at(-1).texts, ["two"]);
  upper(asked.at(-1));
  await settled();
  assert.deepEqual(shown, [[2, "TWO"]]);
  assert.equal(problems.at(-1), null);
});

test("what no try can mend is not tried again", async () => {
  const { translator, asked } = made();
  translator.add(1, "one");
  asked[0].reject({ code: "translation_unavailable" });
  await settled();
  assert.equal(later, null);
  assert.equal(asked.length, 1);
});

test("an answer in the language chosen before is not shown", async () => {
  const { translator, asked, shown } = made();
  translator.add(1, "one");
  translator.target = "French";
  translator.add(1, "one");
  upper(asked[0]);
  await settled();
  assert.deepEqual(shown, []);
  assert.equal(asked[1].language, "French");
});

test("a row that is cut anew with the same text keeps its translation, and one without text asks nothing", async () => {
  const { translator, asked, shown } = made();
  translator.add(1, "one");
  translator.add(2, "  ");
  upper(asked[0]);
  await settled();
  translator.add(1, "one");
  assert.equal(asked.length, 1);
  assert.deepEqual(shown, [[1, "ONE"], [1, "ONE"]]);
});

test("rows that wait have a bound, and without a language none wait", async () => {
  const { translator, asked } = made("");
  translator.add(1, "one");
  assert.equal(asked.length, 0);
  translator.target = "German";
  for (let n = 0; n < 1000; n++) translator.add(n, `row ${n}`);
  let texts = 0;
  for (let i = 0; i < asked.length; i++) {
    texts += asked[i].texts.length;
    upper(asked[i]);
    await settled();
  }
  assert.equal(texts, 401);
});
