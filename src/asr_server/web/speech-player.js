// Reads a text aloud: asks for its sentences part by part, plays one after the other, and holds a bounded number of them.
//
// new SpeechPlayer(ask, output, changed)
//   ask(body, signal)   an async iterator of the events of POST /v1/audio/speech/stream; throws a `Problem`
//   output              a SpeechOutput
//   changed(arrived)    called when `state` or `sentence` changed, or with the {start, end} of a sentence that has arrived
// start(text, from, fields), pause(), resume(), stop(), retry()
// state     "idle", "waiting" (for the server), "reading", "paused", or "failed" (`problem` says why; what is held was played)
// sentence  {start, end} in the text: the one that is spoken now, or was last

import { hasWords, part, placeOf, whole } from "./speech-text.js";

const LOW_S = 30; // with less sound than this, the next part is asked for
const SCHEDULED = 2; // sentences that the browser's sound has, so that it does not wait for the page
// A sentence that ends so near to the end of its part may go on behind it: it is asked for again with the next part.
const MARGIN = 100;

export class SpeechPlayer {
  #ask;
  #output;
  #changed;
  #run = null;
  #paused = false;

  constructor(ask, output, changed) {
    this.#ask = ask;
    this.#output = output;
    this.#changed = changed;
  }

  get state() {
    if (!this.#run) return "idle";
    if (this.#run.problem && !this.#run.playing.length) return "failed";
    if (this.#paused) return "paused";
    return this.#run.playing.length ? "reading" : "waiting";
  }

  get problem() {
    return this.#run?.problem ?? null;
  }

  get sentence() {
    return this.#run?.sentence ?? null;
  }

  /** Read `text` from this place on. `fields` are those of the request, such as the voice. */
  start(text, from, fields) {
    this.#end();
    // held: received; playing: given to the output; at: where the next part begins.
    const run = { text, fields, at: from, held: [], playing: [], sentence: null, problem: null, isComplete: false, leaving: new AbortController(), wake() {} };
    this.#run = run;
    this.#fill(run);
    this.#changed();
  }

  pause() {
    if (!this.#run) return;
    this.#paused = true;
    this.#output.pause();
    this.#changed();
  }

  resume() {
    this.#paused = false;
    this.#output.resume();
    this.#changed();
  }

  stop() {
    this.#end();
    this.#changed();
  }

  /** Go on after a problem with what is missing. */
  retry() {
    if (!this.#run?.problem) return;
    this.#run.problem = null;
    this.#fill(this.#run);
    this.#changed();
  }

  #end() {
    this.#run?.leaving.abort();
    this.#run?.wake();
    this.#run = null;
    this.#paused = false;
    this.#output.stop();
  }

  async #fill(run) {
    try {
      await this.#output.open();
      while (run === this.#run && run.at < run.text.length) {
        if (heldS(run) < LOW_S) await this.#askForPart(run);
        else await new Promise((resolve) => (run.wake = resolve));
      }
      run.isComplete = true;
    } catch (problem) {
      run.problem = problem;
    }
    if (run === this.#run) this.#advance(run);
  }

  async #askForPart(run) {
    const from = run.at;
    const { to, isLast } = part(run.text, from);
    const input = run.text.slice(from, to);
    const events = hasWords(input) ? this.#ask({ ...run.fields, input }, run.leaving.signal) : [];
    for await (const event of events) {
      if (run !== this.#run) return;
      const [start, end] = [event.start, event.end].map((count) => from + placeOf(input, count));
      if (!isLast && end > to - MARGIN && start > from) {
        run.at = start;
        break;
      }
      run.held.push({ start, end, durationS: event.duration, samples: samplesOf(event.audio) });
      run.at = end;
      this.#changed({ start, end });
      this.#advance(run);
    }
    if (isLast) run.at = to;
    else if (run.at === from) run.at = whole(run.text, to - MARGIN); // nothing to speak in between
  }

  /** Give the output what it has room for. */
  #advance(run) {
    while (run.playing.length < SCHEDULED && run.held.length) {
      const sentence = run.held.shift();
      run.playing.push(sentence);
      this.#output.play(sentence.samples, () => this.#ended(run));
      sentence.samples = null;
    }
    const isOver = run.isComplete && !run.playing.length;
    if (run.playing.length) run.sentence = run.playing[0];
    if (isOver) this.#end();
    this.#changed();
  }

  #ended(run) {
    run.playing.shift();
    run.wake();
    this.#advance(run);
  }
}

function heldS(run) {
  return [...run.held, ...run.playing].reduce((sum, { durationS }) => sum + durationS, 0);
}

/** 16-bit samples as base64. */
function samplesOf(base64) {
  const binary = atob(base64);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return new DataView(bytes.buffer);
}
