// The player of a recording: its picture, if it has one, and own controls, which look the same in every browser.

import { clock, icon, make, say } from "./dom.js";
import { name } from "./i18n.js";
import { cuesOf } from "./subtitles.js";
import { lastBefore } from "./transcript.js";
import { storage } from "./web-storage.js";

const STEP_S = 5;
const SPEEDS = [0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3];
const KEPT_SPEED = "speed";

export class Player {
  #media = make("video", { playsInline: true, preload: "metadata" });
  #subtitle = make("p", { className: "subtitle", hidden: true, dir: "auto" });
  #screen = make("div", { className: "screen", hidden: true });
  #controls = make("div", { className: "player-controls" });
  #play;
  #now = make("span", { className: "player-time" });
  #speed = make("select", { className: "player-speed" });
  #on;
  #address = "";
  #durationS = 0; // where the browser does not know
  #kept = storage("localStorage");

  /** `on`: {time(seconds), unplayable(), loaded()}. */
  constructor(box, on) {
    this.#on = on;
    this.#screen.append(this.#media, this.#subtitle);
    this.#play = this.#button("play", "reader.play", () => this.toggle());
    this.#play.classList.add("round");
    for (const rate of SPEEDS) this.#speed.append(new Option(`${rate}×`, String(rate)));
    this.#speed.value = String(this.#kept.getItem(KEPT_SPEED) ?? 1);
    if (!this.#speed.value) this.#speed.value = "1";
    name(this.#speed, "reader.speed", "aria-label");
    name(this.#media, "shell.transcript", "aria-label");
    this.#speed.onchange = () => {
      this.#kept.setItem(KEPT_SPEED, this.#speed.value);
      this.#media.playbackRate = Number(this.#speed.value);
    };
    const full = this.#button("expand", "reader.full_screen", () => this.#fullScreen());
    full.classList.add("only-video");
    const back = this.#button("rewind", "reader.back_5", () => this.step(-STEP_S));
    const forward = this.#button("forward", "reader.forward_5", () => this.step(STEP_S));
    this.#controls.append(this.#now, back, this.#play, forward, this.#speed, full);
    box.replaceChildren(this.#screen, this.#controls);
    this.#listen();
  }

  #button(drawing, key, run) {
    const button = make("button", { type: "button", className: "icon", onclick: run }, icon(drawing));
    name(button, key, "aria-label", "title");
    return button;
  }

  #listen() {
    const media = this.#media;
    const tick = () => {
      this.#show();
      if (!media.paused && !media.ended) requestAnimationFrame(tick);
    };
    media.onplay = () => {
      this.#setButton(true);
      tick();
    };
    media.onpause = media.onended = () => this.#setButton(false);
    media.ontimeupdate = media.onseeked = () => media.paused && this.#show();
    media.onloadedmetadata = () => {
      this.#screen.hidden = media.videoWidth === 0;
      this.#controls.classList.toggle("with-video", media.videoWidth > 0);
      media.playbackRate = Number(this.#speed.value);
      this.#show();
      this.#on.loaded();
    };
    media.onclick = () => this.toggle();
    media.onerror = () => this.#address && this.#on.unplayable();
  }

  #setButton(playing) {
    this.#play.replaceChildren(icon(playing ? "pause" : "play"));
    name(this.#play, playing ? "reader.pause" : "reader.play", "aria-label", "title");
  }

  #show() {
    const seconds = this.#media.currentTime;
    const shown = `${clock(seconds)} / ${clock(this.durationS)}`;
    if (this.#now.textContent !== shown) this.#now.textContent = shown;
    this.#on.time(seconds);
  }

  get seconds() {
    return this.#media.currentTime;
  }

  get paused() {
    return this.#media.paused;
  }

  get durationS() {
    return Number.isFinite(this.#media.duration) && this.#media.duration > 0 ? this.#media.duration : this.#durationS;
  }

  open(blob, durationS) {
    this.close();
    this.#durationS = durationS;
    this.#address = URL.createObjectURL(blob);
    this.#media.src = this.#address;
    this.#show();
  }

  close() {
    this.#media.pause();
    if (!this.#address) return;
    URL.revokeObjectURL(this.#address);
    this.#address = "";
    this.#media.removeAttribute("src");
    this.#media.load(); // which drops the event of the pause
    this.#setButton(false);
    this.#screen.hidden = this.#subtitle.hidden = true;
  }

  /** Where the sound cannot be played at once, the browser's reason is no news: `unplayable` has said it. */
  play() {
    this.#media.play().catch(() => {});
  }

  pause() {
    this.#media.pause();
  }

  toggle() {
    if (this.#media.paused) this.play();
    else this.#media.pause();
  }

  seek(seconds) {
    this.#media.currentTime = Math.max(0, seconds);
    this.#show(); // before the browser reports it: the next key may come earlier
  }

  step(seconds) {
    this.seek(Math.min(this.#media.currentTime + seconds, this.durationS || Infinity));
  }

  /** One step up or down the list of speeds. */
  faster(direction) {
    const at = this.#speed.selectedIndex + direction;
    if (at < 0 || at >= SPEEDS.length) return;
    this.#speed.selectedIndex = at;
    this.#speed.onchange();
  }

  /** Show the words of this row that are spoken now over the picture, as subtitles are cut. */
  subtitle(row, seconds) {
    if (this.#screen.hidden) return;
    const cues = row ? cuesOf([row]) : [];
    const cue = cues[lastBefore(cues, seconds)];
    say(this.#subtitle, cue && seconds < cue.end ? cue.text : "");
  }

  #fullScreen() {
    if (document.fullscreenElement) document.exitFullscreen();
    else this.#screen.requestFullscreen?.().catch(() => {});
  }
}
