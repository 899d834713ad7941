import assert from "node:assert/strict";
import { test } from "node:test";

import { RowHistory } from "./row-history.js";

const row = (n, text = `row ${n}`) => ({ n, text });
const filled = (...ns) => {
  const history = new RowHistory();
  history.apply({ put: ns.map((n) => row(n)) });
  return history;
};
const texts = (history) => history.rows.map(({ text }) => text);

test("rows stay in the order of their keys, however they arrive", () => {
  const history = filled(4, 1, 3);
  history.apply({ put: [row(2), row(3, "new")] });
  assert.deepEqual(texts(history), ["row 1", "row 2", "new", "row 4"]);
  assert.equal(history.row(3).text, "new");
  assert.deepEqual([history.row(9), history.index(0), history.index(4)], [null, -1, 3]);
});

test("an edit is undone and done again, also one that splits or joins", () => {
  const history = filled(1, 5);
  history.edit({ put: [row(1, "a"), row(3, "b")] });
  history.edit({ remove: [3], put: [row(1, "a b")] });
  assert.deepEqual(texts(history), ["a b", "row 5"]);
  assert.deepEqual(history.undo(), { remove: [], put: [row(3, "b"), row(1, "a")] });
  assert.deepEqual(texts(history), ["a", "b", "row 5"]);
  history.undo();
  assert.deepEqual(texts(history), ["row 1", "row 5"]);
  assert.equal(history.undo(), null);
  history.redo();
  history.redo();
  assert.deepEqual(texts(history), ["a b", "row 5"]);
  assert.equal(history.redo(), null);
});

test("what is typed and then kept is one edit, which comes back to the text before typing", () => {
  const history = filled(1);
  history.apply({ put: [row(1, "ty")] });
  history.edit({ put: [row(1, "typed")] }, [row(1)]);
  history.undo();
  assert.deepEqual(texts(history), ["row 1"]);
  assert.equal(history.canUndo, false);
});

test("rows that arrive between do not get lost by undoing, and a new edit ends redoing", () => {
  const history = filled(1);
  history.edit({ put: [row(1, "edited")] });
  history.apply({ put: [row(2)] });
  history.undo();
  assert.deepEqual(texts(history), ["row 1", "row 2"]);
  history.edit({ remove: [2] });
  assert.deepEqual([history.canUndo, history.canRedo], [true, false]);
});

test("undoing keeps a speaker that became known after the edit", () => {
  const history = filled(1, 2);
  history.edit({ put: [row(1, "corrected")] });
  history.arrive({ put: [{ ...row(1, "corrected"), speaker: "A" }, { ...row(2), speaker: "B" }, row(3, "new")] });
  history.undo();
  assert.deepEqual(history.rows, [{ ...row(1), speaker: "A" }, { ...row(2), speaker: "B" }, row(3, "new")]);
  history.redo();
  assert.deepEqual([history.row(1).text, history.row(1).speaker], ["corrected", "A"]);
});

test("an edit is not undone when its row was split elsewhere, which would bring its text twice", () => {
  const history = filled(1, 9);
  history.edit({ put: [row(1, "one two")] });
  history.arrive({ put: [row(1, "one"), row(5, "two")] });
  assert.equal(history.canUndo, false);
  assert.deepEqual(texts(history), ["one", "two", "row 9"]);
});
