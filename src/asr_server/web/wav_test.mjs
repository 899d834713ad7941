import assert from "node:assert/strict";
import { test } from "node:test";

import { pcmOf, wavHead } from "./wav.js";

/** A chunk of a RIFF file. */
const chunk = (name, bytes) => {
  const head = new DataView(new ArrayBuffer(8));
  [...name].forEach((letter, i) => head.setUint8(i, letter.charCodeAt(0)));
  head.setUint32(4, bytes.length, true);
  return new Blob([head, bytes, new Uint8Array(bytes.length % 2)]);
};
const format = (kind, channels, rate, bits) => {
  const view = new DataView(new ArrayBuffer(16));
  view.setUint16(0, kind, true);
  view.setUint16(2, channels, true);
  view.setUint32(4, rate, true);
  view.setUint16(14, bits, true);
  return new Uint8Array(view.buffer);
};
const riff = (...chunks) => new Blob(["RIFF", new Uint32Array([0]), "WAVE", ...chunks]);

test("what is written can be read back", async () => {
  const samples = new Int16Array([1, -2, 3]);
  const file = new Blob([wavHead(6), samples]);
  const found = await pcmOf(file);
  assert.deepEqual(found, { at: 44, bytes: 6, channels: 1, rate: 16_000 });
  assert.deepEqual([...new Int16Array(await file.slice(found.at, found.at + found.bytes).arrayBuffer())], [1, -2, 3]);
});

test("chunks before the samples are passed, and a file that is cut off ends at a whole sample", async () => {
  const file = riff(chunk("LIST", new Uint8Array(7)), chunk("fmt ", format(1, 2, 44_100, 16)), chunk("data", new Uint8Array(100)));
  const { at, bytes, channels, rate } = await pcmOf(file);
  assert.deepEqual([at, bytes, channels, rate], [12 + 16 + 24 + 8, 100, 2, 44_100]);
  assert.equal((await pcmOf(file.slice(0, file.size - 31))).bytes, 68);
});

test("other files are none", async () => {
  for (const blob of [new Blob([]), new Blob(["x".repeat(100)]), riff(chunk("fmt ", format(3, 1, 16_000, 32)), chunk("data", new Uint8Array(8))), riff(chunk("data", new Uint8Array(80)))])
    assert.equal(await pcmOf(blob), null);
});
