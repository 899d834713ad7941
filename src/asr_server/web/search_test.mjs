import assert from "node:assert/strict";
import { test } from "node:test";

import { search } from "./search.js";
import { Store } from "./store.js";

const row = (n, text) => ({ n, start: n, end: n + 1, text, complete: true });

test("a search finds titles and rows, whatever the case, and can be ended", async () => {
  const store = new Store(`test ${Math.random()}`);
  await store.open();
  const talk = await store.create({ title: "Kitchen talk", createdAt: 1 });
  const other = await store.create({ title: "other", createdAt: 2 });
  await store.create({ title: "third" });
  await store.putRows(other.id, [row(1, "nothing"), ...[2, 3, 4, 5].map((n) => row(n, "the KITCHEN  lights"))]);
  const found = await search(store, "kitchen");
  assert.deepEqual(found.map(({ transcript, rows }) => [transcript.id, rows.map(({ n }) => n)]), [[other.id, [2, 3, 4]], [talk.id, []]]);
  assert.equal((await search(store, "kitchen lights")).length, 1);
  assert.deepEqual(await search(store, "kitchen", AbortSignal.abort()), []);
});
