// The level of the microphone as a moving waveform, and the time of the recording.

import { clock, find } from "./dom.js";
import { LevelHistory, draw } from "./live-waveform.js";
import { markRecording } from "./recording-mark.js";

const BARS = 64; // five seconds

export class Meter {
  #history = new LevelHistory(BARS);
  #still = matchMedia("(prefers-reduced-motion: reduce)");
  #second = -1; // the time that is shown

  /** `seconds` of sound of this level, 0 to 1. */
  push(level, seconds) {
    if (!this.#history.push(level, seconds)) return;
    if (!this.#still.matches) draw(find("live-wave"), this.#history);
    this.#show(level);
  }

  clear() {
    this.#history.clear();
    draw(find("live-wave"), this.#history);
    this.#show(0);
  }

  /** The time of a recording in this state: "live", "paused" or another one, of which the other panels show nothing. */
  time(seconds, state) {
    if (Math.floor(seconds) === this.#second) return;
    this.#second = Math.floor(seconds);
    this.mark(seconds, state);
  }

  mark(seconds, state) {
    find("live-time").textContent = clock(seconds);
    markRecording(state === "live" || state === "paused" ? state : "", seconds);
  }

  #show(level) {
    find("live-level").style.setProperty("--level", level.toFixed(2));
    find("live-level").setAttribute("aria-valuenow", Math.round(100 * level));
  }
}
