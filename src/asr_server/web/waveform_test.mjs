import assert from "node:assert/strict";
import test from "node:test";

import { peaksOf } from "./waveform.js";
import { wavHead } from "./wav.js";

const going = { aborted: false };

test("a WAV file has peaks, of which the highest is 1", async () => {
  const samples = new Int16Array(16_000).map((_, i) => (i < 8_000 ? 1_000 : -4_000));
  const peaks = await peaksOf(new Blob([wavHead(samples.byteLength), samples]), null, going);
  assert.equal(Math.max(...peaks), 1);
  assert.equal(peaks[0], 0.25);
});

test("a compressed file of any length has those of the server", async () => {
  const mp3 = new Blob(["ID3".padEnd(100)]);
  assert.deepEqual(await peaksOf(mp3, [0.1, 0.2, 0.05], going), [0.5, 1, 0.25]);
  assert.equal(await peaksOf(mp3, undefined, going), null);
});

test("a file that is gone has none, and that is no error", async () => {
  const gone = { size: 1_000, slice: () => gone, arrayBuffer: () => Promise.reject(new Error("NotFoundError")) };
  assert.equal(await peaksOf(gone, null, going), null);
});
