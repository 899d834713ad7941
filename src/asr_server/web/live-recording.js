// A recording: the microphone, the live connection, and what is kept of both. It knows nothing of the page.

import { Keeper } from "./live-keeper.js";
import { LiveConnection } from "./live-connection.js";
import { WAV_HEADER_BYTES, dropUnfinished } from "./live-recovery.js";
import { LiveSocket } from "./live-socket.js";
import { LiveTranslator } from "./live-translator.js";
import { Microphone } from "./microphone.js";
import { BYTES_PER_SECOND } from "./resample.js";
import { rowsOf } from "./transcript.js";

// Three minutes: what a short outage and the longest utterance need, and 6 MB of memory.
const BUFFER_BYTES = 180 * BYTES_PER_SECOND;
// Of kept sound that is read again while the microphone is open: 58 MB.
export const MOST_AGAIN_BYTES = 1800 * BYTES_PER_SECOND;
const READ_BYTES = 10 * BYTES_PER_SECOND;
const WORDS_MS = 3000; // the times of words, and who said them, come within that, or not at all
const POLL_MS = 50;

export class LiveRecording {
  state = "starting"; // then live, paused, finishing and ended
  #store;
  #options;
  #on;
  #found; // an interrupted recording that goes on, or null
  #microphone = null;
  #choice = 0; // number of the latest choice of a microphone: only that one counts
  #connection;
  #socket;
  #keeper = null;
  #translator;
  #isTranslated = false;
  #early = []; // sound from before there was a keeper
  #behind = []; // sound that waits until kept sound has been sent again
  #sentAgain = Promise.resolve();
  #said = false; // whether there are any words
  #wordless = new Set(); // keys of final lines whose words have no times yet
  #nameless = new Set(); // keys of final lines with words whose speaker is not known yet

  /** `options`: {query, metadata, found, translate}; `query` is the socket's, `metadata` the transcript's. `on`: {state(name),
   * connection(name, detail), line(line), speakers(key, speakers), unlabelled(), fresh(), translated(key, text), translation(problem), error(error),
   * sound(level, seconds), full(), gone(), ended({id, said, error})}. */
  constructor(store, options, on) {
    this.#store = store;
    this.#options = options;
    this.#on = on;
    this.#found = options.found ?? null;
    const from = this.#found?.from ?? 0;
    const speakers = Object.keys(this.#found?.transcript.speakers ?? {});
    const again = Math.min(MOST_AGAIN_BYTES, (this.#found?.soundBytes ?? 0) - from);
    this.#connection = new LiveConnection({ limitBytes: BUFFER_BYTES + again, bytesPerSecond: BYTES_PER_SECOND, from, speakers });
    this.#socket = new LiveSocket(this.#connection, options.query, {
      state: (name, detail) => this.#connected(name, detail),
      line: (line) => this.#line(line),
      words: ({ key, words }) => this.#words(key, words),
      speakers: (update) => this.#speakers(update),
      unlabelled: () => {
        this.#nameless = null; // nobody will be known any more
        on.unlabelled();
      },
      fresh: () => {
        this.#keeper.dropOpen();
        this.#nameless?.clear();
        on.fresh();
      },
      error: on.error,
    });
    this.#translator = new LiveTranslator(options.translate, {
      translated: (...row) => this.#translated(...row),
      problem: on.translation,
    });
  }

  get id() {
    return this.#keeper?.id ?? "";
  }

  get seconds() {
    return (this.#keeper?.soundEnd ?? 0) / BYTES_PER_SECOND;
  }

  /** The id of the server's session. */
  get session() {
    return this.#connection.session;
  }

  /** Seconds of sound that wait for the connection. */
  get unsentS() {
    return this.#connection.unsentBytes / BYTES_PER_SECOND;
  }

  get microphone() {
    return this.#microphone?.deviceId ?? "";
  }

  /** Ask for the microphone and record. Throws a `Problem`. */
  async start(deviceId) {
    this.#microphone = await Microphone.open(deviceId, this.#sound);
    await this.#begin();
    if (this.state === "starting") this.#become("live");
  }

  /** Transcribe the kept sound of an interrupted recording, and end. */
  async finish() {
    await this.#begin();
    await this.stop();
  }

  configure(changes) {
    this.#socket.configure(changes);
  }

  translateInto(target) {
    this.#translator.target = target;
  }

  async useMicrophone(deviceId) {
    const mine = (this.#choice += 1);
    const opened = await Microphone.open(deviceId, this.#sound);
    if (mine !== this.#choice || !this.#open) {
      opened.close();
      return;
    }
    this.#microphone.close();
    this.#microphone = opened;
    if (this.state === "paused") opened.pause();
  }

  /** The pause ends the open utterance. */
  pause() {
    this.#become("paused");
    this.#microphone.pause();
    this.#flush();
  }

  async resume() {
    const mine = this.#microphone;
    await mine.resume();
    if (this.state === "paused" && mine === this.#microphone) this.#become("live");
  }

  /** Wait for the last words, then end. */
  async stop() {
    this.#become("finishing");
    this.#microphone?.close();
    await this.#flush();
    for (let waited = 0; (this.#wordless.size || this.#nameless?.size) && waited < WORDS_MS; waited += POLL_MS) await later(POLL_MS);
    await this.end();
  }

  /** End at once; `error`, if that is the reason. What has no final yet is kept as it is. */
  async end(error = null) {
    if (this.state === "ended") return;
    this.#become("ended");
    this.#choice += 1;
    this.#microphone?.close();
    this.#socket.close();
    if (!this.#keeper) return;
    for (const key of this.#wordless) this.#translate(key);
    const open = this.#keeper.keepOpen();
    this.#said ||= open;
    const unfinished = open || error;
    const changes = { state: unfinished ? "cut" : "complete", durationS: this.seconds, gaps: this.#connection.gaps };
    if (error) changes.error = { code: error.code, message: error.message };
    this.#keeper.settle(); // the sound first: what the store calls complete has all of it
    // What is complete does not go on; see live-recovery.js.
    this.#keeper.update(unfinished ? changes : { ...changes, live: null });
    await this.#keeper.settle();
    this.#on.ended({ id: this.id, said: this.#said, error });
  }

  /** What the store does not have yet; see live-recovery.js. */
  tail() {
    return this.#keeper?.tail() ?? null;
  }

  /** Write what there is, since the page may not be asked again. */
  settle() {
    return this.#keeper?.settle();
  }

  get #open() {
    return this.state === "live" || this.state === "paused";
  }

  #sound = {
    pcm: (bytes) => {
      if (this.state === "live" || this.state === "starting") this.#record(bytes);
    },
    level: (value, seconds) => this.#on.sound(this.state === "live" ? value : 0, seconds),
    ended: () => this.#open && this.#on.gone(),
  };

  #record(bytes) {
    if (!this.#keeper) {
      this.#early.push(bytes);
      return;
    }
    this.#keeper.sound(bytes);
    if (this.#behind) this.#behind.push(bytes);
    else this.#socket.push(bytes);
  }

  async #begin() {
    const { metadata } = this.#options;
    if (this.#found) await this.#reopen();
    const { id } = this.#found?.transcript ?? (await this.#store.create({ ...metadata, kind: "live", state: "open" }));
    if (this.state === "ended") return;
    const { soundBytes: soundEnd, lines, finalEnd } = this.#found ?? {};
    this.#keeper = new Keeper(this.#store, id, { cut: rowsOf, bytesPerSecond: BYTES_PER_SECOND, soundEnd, lines, finalEnd });
    this.#keeper.onfull = this.#on.full;
    for (const bytes of this.#early.splice(0)) this.#record(bytes);
    this.#socket.open();
    this.#sentAgain = this.#sendAgain();
  }

  async #reopen() {
    this.#said = this.#found.lines > 0;
    await dropUnfinished(this.#store, this.#found);
    await this.#store.update(this.#found.transcript.id, { state: "open", error: undefined });
  }

  /** Send the kept sound that has no final, then what was recorded meanwhile. */
  async #sendAgain() {
    if (this.#found) {
      const { transcript, from, soundBytes } = this.#found;
      const sound = await this.#store.sound(transcript.id);
      for (let at = from; at < soundBytes && this.state !== "ended"; at += READ_BYTES) {
        while (this.#connection.unsentBytes > MOST_AGAIN_BYTES && this.state !== "ended") await later(POLL_MS);
        const piece = sound.slice(WAV_HEADER_BYTES + at, WAV_HEADER_BYTES + Math.min(at + READ_BYTES, soundBytes));
        this.#socket.push(new Uint8Array(await piece.arrayBuffer()));
      }
    }
    for (const bytes of this.#behind) this.#socket.push(bytes);
    this.#behind = null;
  }

  async #flush() {
    await this.#sentAgain;
    if (this.state !== "ended") await this.#socket.flush();
  }

  #connected(name, detail) {
    this.#on.connection(name, detail);
    if (name === "closed") this.end(detail.error ?? { code: "cut", message: "" });
  }

  #line(line) {
    if (this.state === "ended") return;
    const rows = this.#keeper.line(line);
    if (line.final && line.language) this.#keeper.update({ language: line.language, languageCode: line.languageCode });
    if (rows.length) {
      this.#said = true;
      this.#wordless.add(line.key);
      this.#awaitNames(line);
      setTimeout(() => this.#translate(line.key), WORDS_MS);
    }
    this.#on.line(line);
  }

  #words(key, words) {
    this.#keeper.words(key, words);
    this.#translate(key);
    this.#wordless.delete(key);
  }

  #speakers({ key, speakers }) {
    if (this.state === "ended") return;
    if (this.#keeper.speakers(key, speakers).length) this.#awaitNames({ key, speakers });
    if (!this.#wordless.has(key)) this.#translate(key);
    this.#on.speakers(key, speakers);
  }

  /** At the end, wait for the speakers of a final line that are not known yet. */
  #awaitNames({ key, speakers }) {
    if (speakers.some(({ speaker }) => !speaker)) this.#nameless?.add(key);
    else this.#nameless?.delete(key);
  }

  /** Once the words of a line have their times, its rows are cut anew only where their speakers change. */
  #translate(key) {
    if (this.#translator.target && !this.#isTranslated) {
      this.#isTranslated = true;
      this.#keeper.update({ translated: true }); // its rows are not joined before their translations have come
    }
    for (const { n, text, translation } of this.#keeper.rows(key)) if (!translation) this.#translator.add(n, text);
  }

  #translated(n, text, translation) {
    const key = this.#keeper.translated(n, text, translation);
    if (key) this.#on.translated(key, this.#keeper.rows(key).map((row) => row.translation ?? "").join(" ").trim());
  }

  #become(name) {
    this.state = name;
    this.#on.state(name);
  }
}

function later(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
