// The player of a chosen file, with subtitles over a video.

import { escaped } from "./subtitles.js";

export class Player {
  #media;
  #track;
  #address = "";

  /** `on`: {time(seconds), unplayable()}. */
  constructor(media, on) {
    this.#media = media;
    this.#track = media.addTextTrack("subtitles", "Transcript");
    this.#track.mode = "showing";
    const tick = () => {
      on.time(media.currentTime);
      if (!media.paused && !media.ended) requestAnimationFrame(tick);
    };
    media.onplay = tick;
    media.ontimeupdate = () => media.paused && on.time(media.currentTime);
    media.onseeked = () => on.time(media.currentTime);
    media.onloadedmetadata = () => media.classList.toggle("sound-only", media.videoWidth === 0);
    media.onerror = () => {
      if (!this.#address) return;
      media.hidden = true;
      on.unplayable();
    };
  }

  /** Seconds, once the browser knows. */
  get duration() {
    return Number.isFinite(this.#media.duration) ? this.#media.duration : 0;
  }

  open(file) {
    if (this.#address) URL.revokeObjectURL(this.#address);
    this.#address = URL.createObjectURL(file);
    this.#media.hidden = false;
    this.#media.classList.add("sound-only");
    this.#media.src = this.#address;
    this.subtitles([]);
  }

  seek(seconds) {
    this.#media.currentTime = seconds;
  }

  /** Show these cues over the video in place of the last ones. */
  subtitles(cues) {
    const shown = [...(this.#track.cues ?? [])];
    const wanted = cues.map(({ start, end, text }) => ({ start, end, text: escaped(text) }));
    const same = (c, i) => c.startTime === wanted[i]?.start && c.endTime === wanted[i].end && c.text === wanted[i].text;
    // In a long recording only the last cues differ.
    const first = shown.findIndex((c, i) => !same(c, i));
    const kept = first < 0 ? shown.length : first;
    for (const old of shown.slice(kept)) this.#track.removeCue(old);
    for (const { start, end, text } of wanted.slice(kept)) this.#track.addCue(new VTTCue(start, end, text));
  }
}
