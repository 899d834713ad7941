// Runs on the audio thread: joins the microphone's blocks of 128 samples into larger ones and posts them.

const SAMPLES = 2048; // 43 ms at 48 kHz: a smooth level meter, and few messages for a slow phone

class Gatherer extends AudioWorkletProcessor {
  #block = new Float32Array(SAMPLES);
  #filled = 0;

  process([input]) {
    const samples = input[0];
    if (!samples) return true; // nothing is connected: the device is gone
    for (let at = 0; at < samples.length; ) {
      const fit = Math.min(samples.length - at, SAMPLES - this.#filled);
      this.#block.set(samples.subarray(at, at + fit), this.#filled);
      this.#filled += fit;
      at += fit;
      if (this.#filled === SAMPLES) this.#post();
    }
    return true;
  }

  #post() {
    this.port.postMessage(this.#block, [this.#block.buffer]);
    this.#block = new Float32Array(SAMPLES);
    this.#filled = 0;
  }
}

registerProcessor("gatherer", Gatherer);
