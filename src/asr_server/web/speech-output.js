// Sounds one after the other, without a gap.
//
// open()                 begin to run; call it while a click is handled, since browsers allow sound only then. Throws a `Problem`
// play(samples, ended)   16-bit samples at 24 kHz in a DataView, behind what is played already
// pause(), resume(), stop()

import { runningContext } from "./microphone.js";

export const RATE = 24_000;

export class SpeechOutput {
  #context = null;
  #sources = new Set();
  #endS = 0; // of what is played already
  #paused = false;

  async open() {
    if (this.#context) await this.#context.resume();
    else this.#context = await runningContext();
    if (this.#paused) await this.#context.suspend();
  }

  play(samples, ended) {
    const buffer = this.#context.createBuffer(1, Math.max(1, samples.byteLength / 2), RATE);
    const channel = buffer.getChannelData(0);
    for (let i = 0; i < samples.byteLength / 2; i++) channel[i] = samples.getInt16(2 * i, true) / 32_768;
    const source = this.#context.createBufferSource();
    source.buffer = buffer;
    source.connect(this.#context.destination);
    source.onended = () => {
      this.#sources.delete(source);
      ended();
    };
    const startS = Math.max(this.#endS, this.#context.currentTime);
    source.start(startS);
    this.#endS = startS + buffer.duration;
    this.#sources.add(source);
  }

  pause() {
    this.#paused = true;
    this.#context?.suspend();
  }

  resume() {
    this.#paused = false;
    this.#context?.resume();
  }

  stop() {
    for (const source of this.#sources) {
      source.onended = null;
      source.stop();
    }
    this.#sources.clear();
    this.#endS = 0;
    this.#paused = false;
    this.#context?.suspend(); // a running one keeps the sound device busy
  }
}
