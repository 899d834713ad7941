// The store over memory, as Node has no IndexedDB; E2Etest/browser/test_library.py has the tests over IndexedDB.
import assert from "node:assert/strict";
import { test } from "node:test";

import { Store } from "./store.js";

const row = (n, text = `row ${n}`) => ({ n, start: n, end: n + 1, text, complete: true });

async function opened() {
  const store = new Store(`test ${Math.random()}`);
  await store.open();
  return store;
}

test("without IndexedDB the store says that it keeps nothing, and works", async () => {
  const store = await opened();
  assert.equal(store.persistent, false);
  const made = await store.create({ title: "talk.wav", kind: "file" });
  assert.match(made.id, /^[\w-]{32,36}$/);
  assert.deepEqual(await store.get(made.id), made);
  assert.equal(await store.get("absent"), null);
});

test("transcripts are listed newest first", async () => {
  const store = await opened();
  for (const createdAt of [2, 3, 1]) await store.create({ title: String(createdAt), createdAt });
  assert.deepEqual((await store.list()).map(({ title }) => title), ["3", "2", "1"]);
});

test("a damaged record is skipped and counted, and hides no other", async () => {
  const store = await opened();
  const { id } = await store.create({ title: "a" });
  await store.putRows(id, [row(1), { n: 2, start: 2, end: 3 }]);
  for (const damage of [{ state: "unheard of" }, { title: null }, { createdAt: "yesterday" }]) {
    const { id: damaged } = await store.create(damage);
    assert.equal(await store.get(damaged), null);
  }
  assert.deepEqual((await store.list()).map(({ title }) => title), ["a"]);
  assert.equal(store.damaged, 3);
  assert.deepEqual((await store.rows(id)).map(({ n }) => n), [1]);
  assert.deepEqual(await store.firstRow(id), row(1));
});

test("rows are kept in their order, replaced by their key, and removed", async () => {
  const store = await opened();
  const { id } = await store.create({});
  const other = await store.create({});
  await store.putRows(id, Array.from({ length: 450 }, (_, i) => row(1000 - i)));
  await store.putRows(other.id, [row(1)]);
  await store.changeRows(id, [600], [row(601, "changed"), row(1001)]);
  const rows = await store.rows(id);
  assert.equal(rows.length, 450);
  assert.ok(rows.every(({ n }, i) => !i || n > rows[i - 1].n));
  assert.equal(rows.find(({ n }) => n === 601).text, "changed");
  assert.ok(!rows.some(({ n }) => n === 600));
});

test("nothing is written for a transcript that is not there", async () => {
  const store = await opened();
  assert.equal(await store.putRows("absent", [row(1)]), false);
  assert.equal(await store.appendSound("absent", new Blob(["x"])), false);
  assert.equal(await store.update("absent", { title: "x" }), null);
  assert.deepEqual(await store.rows("absent"), []);
});

test("pieces of sound become one WAV file, in the order of the calls", async () => {
  const store = await opened();
  const { id } = await store.create({ kind: "live" });
  assert.equal(await store.sound(id), null);
  await Promise.all([1, 2, 3].map((value) => store.appendSound(id, new Blob([new Int16Array([value, value])]))));
  const sound = await store.sound(id);
  assert.equal(sound.type, "audio/wav");
  const bytes = await sound.arrayBuffer();
  assert.deepEqual([...new Int16Array(bytes, 44)], [1, 1, 2, 2, 3, 3]);
  assert.equal(new DataView(bytes).getUint32(40, true), 12);
});

test("a file is kept as it is", async () => {
  const store = await opened();
  const { id } = await store.create({});
  await store.putSound(id, new Blob(["sound"], { type: "video/mp4" }));
  const sound = await store.sound(id);
  assert.deepEqual([sound.type, await sound.text()], ["video/mp4", "sound"]);
});

test("what was removed is gone from the list at once and comes back whole", async () => {
  const store = await opened();
  const { id } = await store.create({ title: "kept" });
  await store.putRows(id, [row(1)]);
  const undo = await store.remove(id);
  assert.deepEqual([await store.list(), await store.get(id)], [[], null]);
  await undo();
  assert.equal((await store.list())[0].title, "kept");
  assert.equal((await store.rows(id)).length, 1);
});

test("after the time for undoing it is really removed", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const store = await opened();
  const { id } = await store.create({});
  const kept = await store.create({});
  await store.putRows(id, [row(1)]);
  await store.putRows(kept.id, [row(1)]);
  await store.remove(id);
  context.mock.timers.tick(29_000);
  assert.equal((await store.rows(id)).length, 1);
  context.mock.timers.tick(2000);
  for (let i = 0; i < 10; i++) await null;
  assert.deepEqual(await store.rows(id), []);
  assert.equal((await store.rows(kept.id)).length, 1);
});

test("all can be removed and restored together", async () => {
  const store = await opened();
  for (const title of ["a", "b"]) await store.create({ title });
  const undo = await store.remove(...(await store.list()).map(({ id }) => id));
  assert.equal((await store.list()).length, 0);
  await undo();
  assert.equal((await store.list()).length, 2);
});

test("listeners hear of changes until they end it", async () => {
  const store = await opened();
  const heard = [];
  const end = store.onchange(({ type, here }) => heard.push([type, here]));
  const { id } = await store.create({});
  await store.putRows(id, [row(1)]);
  await store.remove(id);
  end();
  await store.create({});
  assert.deepEqual(heard, [["transcript", true], ["rows", true], ["removed", true]]);
});

test("a write that fails is reported and throws nothing", async () => {
  const store = await opened();
  const { id } = await store.create({});
  const codes = [];
  store.onproblem((code) => codes.push(code));
  // A function cannot be stored.
  assert.equal(await store.putRows(id, [{ ...row(1), text: () => {} }]), false);
  assert.deepEqual(codes, ["storage_failed"]);
});

test("a change that follows from what is stored sees what others have stored meanwhile", async () => {
  const store = await opened();
  const { id } = await store.create({});
  const add = (name) => store.update(id, ({ speakers }) => ({ speakers: { ...speakers, [name]: "" } }));
  await Promise.all(["A", "B", "C"].map(add));
  assert.deepEqual(Object.keys((await store.get(id)).speakers).sort(), ["A", "B", "C"]);
});
