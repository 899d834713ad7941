import assert from "node:assert/strict";
import { test } from "node:test";
import { Resampler, level, toPcm } from "./resample.js";

const RATES = [8000, 22_050, 32_000, 44_100, 48_000, 96_000];
const tone = (hertz, rate, seconds = 0.5) => Float32Array.from({ length: rate * seconds }, (_, i) => Math.sin((2 * Math.PI * hertz * i) / rate));
const whole = (samples, rate) => new Resampler(rate, 16_000).push(samples);
const decibels = (samples) => {
  const middle = samples.subarray(400, samples.length - 400);
  return 10 * Math.log10((2 * middle.reduce((sum, value) => sum + value * value, 0)) / middle.length + 1e-20);
};

test("how the input is cut does not change a sample", () => {
  for (const rate of RATES) {
    const input = tone(440, rate, 0.2);
    const resampler = new Resampler(rate, 16_000);
    const out = [];
    for (let at = 0, size = 1; at < input.length; at += size, size = 1 + ((size * 7) % 300)) out.push(...resampler.push(input.subarray(at, at + size)));
    assert.deepEqual(Float32Array.from(out), whole(input, rate));
  }
});

test("the output is as long as the input, less the filter's look ahead", () => {
  for (const rate of RATES) {
    const missing = 16_000 * 0.5 - whole(tone(440, rate), rate).length;
    assert.ok(missing >= 0 && missing <= 60, `${rate}: ${missing}`);
  }
});

test("tones up to 7 kHz keep their level, and their place in time", () => {
  for (const rate of RATES.filter((r) => r >= 16_000))
    for (const hertz of [100, 1000, 4000, 7000]) {
      const out = whole(tone(hertz, rate), rate);
      assert.ok(Math.abs(decibels(out)) < 0.1, `${hertz} at ${rate}: ${decibels(out)}`);
      const wanted = tone(hertz, 16_000);
      for (let i = 400; i < 600; i++) assert.ok(Math.abs(out[i] - wanted[i]) < 0.02);
    }
});

test("tones above 9 kHz are gone", () => {
  for (const rate of [44_100, 48_000, 96_000])
    for (const hertz of [9000, 10_000, 15_000, 20_000]) assert.ok(decibels(whole(tone(hertz, rate), rate)) < -70, `${hertz} at ${rate}`);
});

test("16 kHz passes untouched", () => {
  const input = tone(440, 16_000);
  assert.deepEqual(whole(input, 16_000), input);
});

test("PCM is little-endian, rounded, and clipped at both ends", () => {
  const bytes = toPcm(Float32Array.from([0, 1, -1, 2, -2, 0.5]));
  const view = new DataView(bytes.buffer);
  assert.deepEqual([0, 1, 2, 3, 4, 5].map((i) => view.getInt16(2 * i, true)), [0, 32767, -32767, 32767, -32767, 16384]);
});

test("the meter goes from silence to full scale", () => {
  assert.equal(level(new Float32Array(100)), 0);
  assert.equal(level(Float32Array.from({ length: 100 }, () => 1)), 1);
  assert.ok(level(tone(440, 16_000)) > 0.9);
});
