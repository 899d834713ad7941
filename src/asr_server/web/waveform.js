// The waveform of a recording: its peaks, computed in slices, and the drawing that one can seek in.

import { clock, make } from "./dom.js";
import { name, t } from "./i18n.js";
import { lastBefore } from "./transcript.js";
import { pcmOf } from "./wav.js";

const BUCKETS = 1200;
const READ_BYTES = 512 * 1024; // of a WAV file at a time
const STEP_S = 5;

/** Peaks from 0 to 1 of a recording: read from a WAV file, of others what the server has sent; null if there are none. */
export async function peaksOf(blob, known, signal) {
  let peaks = null;
  try {
    const pcm = await pcmOf(blob);
    peaks = pcm ? await ofPcm(blob, pcm, signal) : (known ?? null);
  } catch {
    // The player says that the file cannot be played.
  }
  const highest = peaks ? Math.max(...peaks) : 0;
  return highest > 0 ? peaks.map((peak) => peak / highest) : null;
}

async function ofPcm(blob, { at, bytes, channels }, signal) {
  const peaks = new Float32Array(BUCKETS);
  const step = READ_BYTES - (READ_BYTES % (2 * channels));
  for (let from = 0; from < bytes && !signal.aborted; from += step) {
    const piece = await blob.slice(at + from, at + Math.min(from + step, bytes)).arrayBuffer();
    const samples = new Int16Array(piece, 0, piece.byteLength >> 1);
    raise(peaks, samples, from / 2, bytes / 2);
  }
  return signal.aborted ? null : peaks;
}

/** Raise the peaks to those of `samples`, which begin at sample `from` of `total`. */
export function raise(peaks, samples, from, total) {
  for (let i = 0; i < samples.length; i++) {
    const bucket = Math.min(peaks.length - 1, Math.floor(((from + i) * peaks.length) / total));
    const height = Math.abs(samples[i]);
    if (height > peaks[bucket]) peaks[bucket] = height;
  }
}

export class Waveform {
  #canvas = make("canvas");
  #box;
  #on;
  #peaks = null;
  #rows = [];
  #gaps = [];
  #durationS = 0;
  #seconds = 0;
  #colour = () => "";
  #drawn = false; // whether a drawing is due in the next frame

  /** `on`: {seek(seconds)}. */
  constructor(box, on) {
    this.#box = box;
    this.#on = on;
    box.append(this.#canvas);
    box.tabIndex = 0;
    box.setAttribute("role", "slider");
    name(box, "reader.position", "aria-label");
    box.setAttribute("aria-valuemin", "0");
    box.onpointerdown = (event) => this.#drag(event);
    box.onkeydown = (event) => this.#key(event);
    new ResizeObserver(() => this.#redraw()).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#redraw());
  }

  /** What is drawn: {peaks, rows, gaps, durationS, colour(speaker)}, each if it changed. Rows are in order. */
  show({ peaks = this.#peaks, rows = this.#rows, gaps = this.#gaps, durationS = this.#durationS, colour = this.#colour }) {
    this.#peaks = peaks;
    this.#rows = rows;
    this.#gaps = gaps;
    this.#durationS = durationS;
    this.#colour = colour;
    this.#box.setAttribute("aria-valuemax", String(Math.round(durationS)));
    this.#redraw();
  }

  at(seconds) {
    this.#seconds = seconds;
    const whole = String(Math.floor(seconds));
    if (this.#box.getAttribute("aria-valuenow") !== whole) {
      this.#box.setAttribute("aria-valuenow", whole);
      this.#box.setAttribute("aria-valuetext", t("reader.position_of", { at: clock(seconds), of: clock(this.#durationS) }));
    }
    this.#redraw();
  }

  #drag(event) {
    if (event.button) return;
    this.#box.setPointerCapture(event.pointerId);
    const seek = ({ clientX }) => {
      const { left, width } = this.#canvas.getBoundingClientRect();
      this.#on.seek(Math.min(Math.max((clientX - left) / width, 0), 1) * this.#durationS);
    };
    seek(event);
    this.#box.onpointermove = seek;
    this.#box.onpointerup = this.#box.onpointercancel = () => (this.#box.onpointermove = null);
  }

  #key(event) {
    const to = { ArrowLeft: -STEP_S, ArrowDown: -STEP_S, ArrowRight: STEP_S, ArrowUp: STEP_S, PageUp: 60, PageDown: -60, Home: -Infinity, End: Infinity }[event.key];
    if (to === undefined || event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    this.#on.seek(Math.min(Math.max(this.#seconds + to, 0), this.#durationS));
  }

  #redraw() {
    if (this.#drawn) return;
    this.#drawn = true;
    requestAnimationFrame(() => {
      this.#drawn = false;
      this.#draw();
    });
  }

  #draw() {
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    if (!width) return;
    const scale = devicePixelRatio || 1;
    const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
    if (this.#canvas.width !== wide || this.#canvas.height !== high) Object.assign(this.#canvas, { width: wide, height: high });
    const brush = this.#canvas.getContext("2d");
    brush.setTransform(scale, 0, 0, scale, 0, 0);
    brush.clearRect(0, 0, width, height);
    const style = getComputedStyle(this.#box);
    const [accent, quiet, amber, ink] = ["--accent", "--edge", "--amber", "--ink"].map((name) => style.getPropertyValue(name));
    const bars = Math.floor(width / 3);
    for (let i = 0; i < bars; i++) {
      const seconds = ((i + 0.5) / bars) * this.#durationS;
      const row = this.#rowAt(seconds);
      const tall = Math.max(2, this.#peak(i, bars, row) * (height - 8));
      brush.globalAlpha = seconds <= this.#seconds ? 1 : 0.5;
      brush.fillStyle = row ? this.#colour(row.speaker) || accent : quiet;
      brush.fillRect(i * 3, (height - tall) / 2, 2, tall);
    }
    brush.globalAlpha = 1;
    brush.fillStyle = amber;
    for (const { start, end } of this.#gaps) brush.fillRect((start / this.#durationS) * width, height - 3, Math.max(2, ((end - start) / this.#durationS) * width), 3);
    brush.fillStyle = ink;
    if (this.#durationS) brush.fillRect(Math.min((this.#seconds / this.#durationS) * width, width - 2), 0, 2, height);
  }

  #rowAt(seconds) {
    const row = this.#rows[lastBefore(this.#rows, seconds)];
    return row && seconds < row.end ? row : null;
  }

  /** Without peaks, rows are blocks and pauses a line. */
  #peak(bar, bars, row) {
    if (!this.#peaks) return row ? 0.5 : 0;
    const { length } = this.#peaks;
    return Math.max(...this.#peaks.slice(Math.floor((bar / bars) * length), Math.ceil(((bar + 1) / bars) * length)));
  }
}
