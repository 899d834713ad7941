import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { AT_ONCE, MOST_ITEMS, Queue } from "./queue.js";

const settled = () => new Promise((next) => setImmediate(next));

/** A queue whose work ends when it is told to: `ends[name](state)` or `fails[name](problem)`. */
function controlled() {
  const [ends, fails, begun] = [{}, {}, []];
  const run = (item, signal, report) =>
    new Promise((resolve, reject) => {
      begun.push(item.name);
      report({ state: "uploading" });
      [ends[item.name], fails[item.name]] = [resolve, reject];
      signal.onabort = () => reject(new Error("aborted"));
    });
  const queue = new Queue(run, () => {});
  return { queue, ends, fails, begun, states: () => queue.items.map(({ state }) => state) };
}

test("two at a time, in order, and the next when one ends", async () => {
  const { queue, ends, begun, states } = controlled();
  for (const name of ["a", "b", "c"]) queue.add({ name });
  assert.deepEqual([AT_ONCE, begun], [2, ["a", "b"]]);
  ends.b("done");
  await settled();
  assert.deepEqual([begun, states()], [["a", "b", "c"], ["uploading", "done", "uploading"]]);
  ends.a("cut");
  ends.c("done");
  await settled();
  assert.deepEqual([states(), queue.busy], [["cut", "done", "done"], false]);
});

test("a failure is one item's own, and can be tried again", async () => {
  const { queue, ends, fails, begun, states } = controlled();
  const [first] = ["a", "b"].map((name) => queue.add({ name }));
  fails.a(new Error("broken"));
  await settled();
  assert.deepEqual([states(), first.problem.message], [["failed", "uploading"], "broken"]);
  queue.retry(first);
  assert.deepEqual([begun, first.problem], [["a", "b", "a"], null]);
  ends.a("done");
  await settled();
  assert.equal(first.state, "done");
});

test("what waits or works can be cancelled, and its place is free", async () => {
  const { queue, begun, states } = controlled();
  const items = ["a", "b", "c", "d"].map((name) => queue.add({ name }));
  queue.cancel(items[2]);
  queue.cancel(items[0]);
  await settled();
  assert.deepEqual([states(), begun], [["cancelled", "uploading", "cancelled", "uploading"], ["a", "b", "d"]]);
  queue.remove(items[1]);
  queue.remove(items[0]);
  assert.deepEqual(queue.items.map(({ name }) => name), ["b", "c", "d"]);
});

test("a server without room is asked again when it said, by nobody earlier", async () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const { queue, ends, fails, begun, states } = controlled();
  for (const name of ["a", "b", "c"]) queue.add({ name });
  fails.a(Object.assign(new Error("busy"), { retryAfterS: 7 }));
  await settled();
  assert.deepEqual([states(), queue.items[0].untilMs], [["waiting", "uploading", "waiting"], 7000]);
  ends.b("done");
  await settled();
  mock.timers.tick(6999);
  assert.deepEqual(begun, ["a", "b"]);
  mock.timers.tick(1);
  assert.deepEqual(begun, ["a", "b", "a", "c"]);
  mock.timers.reset();
});

test("waiting has an end", async () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const { queue, fails, states } = controlled();
  queue.add({ name: "a" });
  for (let tries = 0; states()[0] !== "failed"; tries++) {
    assert.ok(tries <= 60);
    fails.a(Object.assign(new Error("busy"), { retryAfterS: 60 }));
    await settled();
    mock.timers.tick(60_000);
  }
  mock.timers.reset();
});

test("the number of items is bounded; those that are done give way", async () => {
  const { queue, ends } = controlled();
  for (let i = 0; i < MOST_ITEMS; i++) assert.ok(queue.add({ name: i }));
  assert.equal(queue.add({ name: "more" }), null);
  ends[0]("done");
  await settled();
  assert.ok(queue.add({ name: "more" }));
  assert.equal(queue.items.length, MOST_ITEMS);
});
