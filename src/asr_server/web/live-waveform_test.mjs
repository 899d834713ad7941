import assert from "node:assert/strict";
import { test } from "node:test";
import { LevelHistory } from "./live-waveform.js";

test("a bar is the loudest of its time, and the oldest bar leaves", () => {
  const history = new LevelHistory(3);
  const completed = [0.1, 0.5, 0.25, 0.75, 0, 0, 0.125, 0].map((level) => history.push(level, 0.05));
  assert.deepEqual(completed, [false, true, false, true, true, false, true, true]);
  assert.deepEqual([...history.bars], [0, 0.125, 0]);
});

test("blocks longer than a bar are one bar each", () => {
  const history = new LevelHistory(2);
  assert.deepEqual([history.push(0.5, 0.2), history.push(0.25, 0.2)], [true, true]);
  assert.deepEqual([...history.bars], [0.5, 0.25]);
});

test("nothing is left of the last recording", () => {
  const history = new LevelHistory(2);
  history.push(1, 0.07);
  history.push(1, 0.07);
  history.push(1, 0.07);
  history.clear();
  history.push(0, 0.09);
  assert.deepEqual([...history.bars], [0, 0]);
});
