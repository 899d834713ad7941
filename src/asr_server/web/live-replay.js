// Plays the sound of a line of the recording.

import { WAV_HEADER_BYTES } from "./live-recovery.js";
import { BYTES_PER_SECOND } from "./resample.js";
import { wavHead } from "./wav.js";

const MARGIN_S = 0.2; // the times of a line end with its words

/** The part of a WAV between two times, as a WAV. */
export function clip(sound, start, end) {
  const at = (seconds) => WAV_HEADER_BYTES + 2 * Math.round((Math.max(0, seconds) * BYTES_PER_SECOND) / 2);
  const samples = sound.slice(at(start - MARGIN_S), at(end + MARGIN_S));
  return new Blob([wavHead(samples.size), samples], { type: "audio/wav" });
}

export class Replay {
  #audio = new Audio();

  /** Play; false if there is no such sound. */
  async play(sound, { start, end }) {
    this.stop();
    if (!sound || sound.size <= WAV_HEADER_BYTES + start * BYTES_PER_SECOND) return false;
    const address = URL.createObjectURL(clip(sound, start, end));
    this.#audio.src = address;
    this.#audio.onended = this.#audio.onerror = this.#audio.onpause = () => URL.revokeObjectURL(address);
    await this.#audio.play().catch(() => {}); // another line was chosen meanwhile
    return true;
  }

  stop() {
    this.#audio.pause();
  }
}
