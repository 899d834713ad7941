// Mono samples at the sound card's rate to 16 kHz, as a stream, and floats to 16-bit PCM.
//
// A Kaiser-windowed sinc, one row of taps for each phase of the ratio. Tones above 9 kHz come out below -70 dB, tones
// up to 7 kHz within 0.1 dB; the test measures both.

import { RATE } from "./wav.js";

export const BYTES_PER_SECOND = 2 * RATE;
const ZEROS = 26; // zero crossings of the sinc on each side, at the lower of the two rates
const BETA = 8; // stopband near -80 dB

export class Resampler {
  #up;
  #down;
  #half;
  #rows;
  #kept; // the samples that coming outputs still look back at
  #at = 0; // numerator of the next output's place in #kept, in steps of 1 / #up

  constructor(inputRate, outputRate) {
    const common = divisor(inputRate, outputRate);
    this.#up = outputRate / common;
    this.#down = inputRate / common;
    const cutoff = Math.min(1, outputRate / inputRate);
    this.#half = Math.ceil(ZEROS / cutoff);
    this.#rows = Array.from({ length: this.#up }, (_, phase) => taps(phase / this.#up, cutoff, this.#half));
    // Silence before the first sample, so that the first output lies at time 0.
    this.#kept = new Float32Array(this.#half - 1);
    this.#at = (this.#half - 1) * this.#up;
  }

  /** Float32Array in, Float32Array of what is ready out; how the input is cut does not matter. */
  push(samples) {
    if (this.#up === this.#down) return samples;
    const input = joined(this.#kept, samples);
    const out = [];
    for (let whole = Math.floor(this.#at / this.#up); whole + this.#half < input.length; ) {
      const row = this.#rows[this.#at % this.#up];
      const first = whole - this.#half + 1;
      let sum = 0;
      for (let k = 0; k < row.length; k++) sum += row[k] * input[first + k];
      out.push(sum);
      this.#at += this.#down;
      whole = Math.floor(this.#at / this.#up);
    }
    const cut = Math.max(0, Math.min(input.length, Math.floor(this.#at / this.#up) - this.#half + 1));
    this.#kept = input.slice(cut);
    this.#at -= cut * this.#up;
    return Float32Array.from(out);
  }
}

/** Floats in [-1, 1] as little-endian 16-bit PCM; what is louder is clipped. */
export function toPcm(samples) {
  const view = new DataView(new ArrayBuffer(2 * samples.length));
  samples.forEach((value, i) => view.setInt16(2 * i, Math.round(Math.max(-1, Math.min(1, value)) * 32767), true));
  return new Uint8Array(view.buffer);
}

/** Loudness as a fraction of a level meter: 0 at -60 dB and below, 1 at full scale. */
export function level(samples) {
  let sum = 0;
  for (const value of samples) sum += value * value;
  const decibels = 10 * Math.log10(sum / Math.max(1, samples.length) + 1e-12);
  return Math.max(0, Math.min(1, 1 + decibels / 60));
}

function taps(fraction, cutoff, half) {
  const row = new Float64Array(2 * half);
  let sum = 0;
  for (let k = 0; k < row.length; k++) {
    const t = k - half + 1 - fraction;
    const x = Math.PI * cutoff * t;
    const window = Math.abs(t) < half ? bessel(BETA * Math.sqrt(1 - (t / half) ** 2)) : 0;
    row[k] = (x === 0 ? 1 : Math.sin(x) / x) * window;
    sum += row[k];
  }
  return row.map((tap) => tap / sum);
}

/** The modified Bessel function of order 0. */
function bessel(x) {
  let term = 1;
  let sum = 1;
  for (let k = 1; term > 1e-12 * sum; k++) {
    term *= (x / (2 * k)) ** 2;
    sum += term;
  }
  return sum;
}

function joined(a, b) {
  const out = new Float32Array(a.length + b.length);
  out.set(a);
  out.set(b, a.length);
  return out;
}

function divisor(a, b) {
  return b ? divisor(b, a % b) : a;
}
