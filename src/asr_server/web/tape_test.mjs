import assert from "node:assert/strict";
import { test } from "node:test";
import { Tape } from "./tape.js";

const counted = (from, length) => Uint8Array.from({ length }, (_, i) => (from + i) % 251);
const filled = (tape, total, sizes = [7, 1, 0, 20, 3]) => {
  for (let i = 0; tape.end < total; i++) tape.push(counted(tape.end, Math.min(sizes[i % sizes.length], total - tape.end)));
  return tape;
};

test("what is read anywhere and in any amount is what was recorded there", () => {
  const tape = filled(new Tape(10_000), 500);
  for (let from = 0; from < 500; from += 13)
    for (const most of [1, 2, 50, 999]) assert.deepEqual(tape.read(from, most), counted(from, Math.min(most, 500 - from)));
});

test("there is nothing to read at the end, behind it, or before the start", () => {
  const tape = filled(new Tape(100), 500);
  assert.equal(tape.read(500, 10), null);
  assert.equal(tape.read(501, 10), null);
  assert.equal(tape.read(tape.start - 1, 10), null);
});

test("it never holds more than its limit and one piece, and what it holds is the newest", () => {
  const tape = filled(new Tape(100), 5000);
  assert.ok(tape.end - tape.start >= 100 && tape.end - tape.start < 120);
  assert.deepEqual(tape.read(tape.start, 1000), counted(tape.start, tape.end - tape.start));
});

test("what is forgotten lies before the position, whole pieces only", () => {
  const tape = filled(new Tape(10_000), 500);
  tape.forget(250);
  assert.ok(tape.start <= 250 && tape.start > 220);
  assert.deepEqual(tape.read(250, 10), counted(250, 10));
  tape.forget(279); // nine rounds of 31 bytes: the border of two pieces
  assert.equal(tape.start, 279);
});
