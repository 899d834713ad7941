import assert from "node:assert/strict";
import { test } from "node:test";
import { ReplayBuffer } from "./replay-buffer.js";

const counted = (from, length) => Uint8Array.from({ length }, (_, i) => (from + i) % 251);
const filled = (buffer, total, sizes = [7, 1, 0, 20, 3]) => {
  for (let i = 0; buffer.end < total; i++) buffer.push(counted(buffer.end, Math.min(sizes[i % sizes.length], total - buffer.end)));
  return buffer;
};

test("what is read anywhere and in any amount is what was recorded there", () => {
  const buffer = filled(new ReplayBuffer(10_000), 500);
  for (let from = 0; from < 500; from += 13)
    for (const most of [1, 2, 50, 999]) assert.deepEqual(buffer.read(from, most), counted(from, Math.min(most, 500 - from)));
});

test("there is nothing to read at the end, behind it, or before the start", () => {
  const buffer = filled(new ReplayBuffer(100), 500);
  assert.equal(buffer.read(500, 10), null);
  assert.equal(buffer.read(501, 10), null);
  assert.equal(buffer.read(buffer.start - 1, 10), null);
});

test("it never holds more than its limit and one piece, and what it holds is the newest", () => {
  const buffer = filled(new ReplayBuffer(100), 5000);
  assert.ok(buffer.end - buffer.start >= 100 && buffer.end - buffer.start < 120);
  assert.deepEqual(buffer.read(buffer.start, 1000), counted(buffer.start, buffer.end - buffer.start));
});

test("what is forgotten lies before the position, whole pieces only", () => {
  const buffer = filled(new ReplayBuffer(10_000), 500);
  buffer.forget(250);
  assert.ok(buffer.start <= 250 && buffer.start > 220);
  assert.deepEqual(buffer.read(250, 10), counted(250, 10));
  buffer.forget(279); // nine rounds of 31 bytes: the border of two pieces
  assert.equal(buffer.start, 279);
});

test("actions are kept in order, the newest of them, and a new session counts its own", () => {
  const buffer = filled(new ReplayBuffer(10_000), 100);
  for (const text of ["a", "b", "c"]) buffer.act(text);
  assert.deepEqual([buffer.actionAfter(1), buffer.actionAfter(3)], [{ at: 100, number: 2, text: "b" }, undefined]);
  for (let i = 0; i < 5000; i++) buffer.act("d");
  assert.equal(buffer.actionAfter(0).number, 4004);
  buffer.restartActions();
  buffer.act("e");
  assert.equal(buffer.actionAfter(0).number, 1);
});
