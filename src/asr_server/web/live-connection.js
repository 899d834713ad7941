// The state of the live connection: which bytes to send next, and how to resume after a broken connection. It holds no
// socket and reads no clock; live-socket.js does.
//
// Positions are bytes since recording began, across all connections and sessions. A session of the server counts only
// its own bytes: `#base` is its start. If the session is lost, a new one gets the audio without a final.
// docs/use/websocket.md, "When the connection breaks", specifies this.

import { ReplayBuffer } from "./replay-buffer.js";
import { SpeakerIds } from "./speakers.js";
import { addGap } from "./transcript.js";

const FIRST_DELAY_MS = 250;
const LONGEST_DELAY_MS = 5000;

/** How long to wait before a try that follows so many failed ones. */
export const retryDelayMs = (tries) => Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** tries);

// What each close code means for the next connection; every other code means to resume.
export const AFTER_CLOSE = {
  1000: "stop", // this page closed it
  1009: "stop", // a frame was too long: a retry would send it again
  3000: "stop", // no key, or an invalid one
  3003: "stop", // the origin of this page is not allowed
  4000: "stop", // an invalid parameter
  4009: "stop", // another page has taken the session over
  4004: "fresh", // the server does not keep the session any more
};

export class LiveConnection {
  #base = 0;
  #sent = 0;
  #finalized = 0; // position up to which all finals have arrived
  #session = "";
  #number = 0; // of the session, for the keys of lines
  #received = 0;
  #inPause = true; // the last final ended in a pause
  #actionsSent = 0; // of the session, over the present connection or one before
  #tries = 0;
  #windowSeconds = 30;
  #ids;

  /** `from`: the position of the first byte that will be pushed, where an earlier recording goes on; `speakers`: the ids of its
   * speakers. */
  constructor({ limitBytes, bytesPerSecond, from = 0, speakers = [] }) {
    this.#ids = new SpeakerIds(speakers);
    this.buffer = new ReplayBuffer(limitBytes, from);
    this.bytesPerSecond = bytesPerSecond;
    this.#sent = this.#finalized = from;
    this.connected = false;
    this.lostSeconds = 0;
    this.gaps = []; // {start, end}: where they were lost, in seconds of the recording
  }

  /** The id of the session, "" before the first. */
  get session() {
    return this.#session;
  }

  get unsentBytes() {
    return this.buffer.end - this.#sent;
  }

  /** The query of the next connection. */
  get query() {
    if (this.#session) return { session_id: this.#session, received: String(this.#received) };
    return this.#number ? { reopened: this.#inPause ? "pause" : "speech" } : {};
  }

  /** The server has said its last word of this session. */
  leave() {
    this.#session = "";
  }

  /** Process the server's first message. Returns whether it is of a new session, whose lines replace the open ones of the last,
   * and which gets no action again. */
  hello(message) {
    const fresh = !message.resumed;
    const wanted = fresh ? this.#firstWithoutFinal() : this.#base + message.received_bytes;
    this.#sent = Math.max(wanted, this.buffer.start);
    if (fresh) {
      this.#base = this.#sent;
      this.#received = 0;
      this.#number += 1;
      this.#ids.fresh();
      this.buffer.restartActions();
    } else {
      this.#base = this.#sent - message.received_bytes; // lost bytes are not in the server's count
    }
    this.#actionsSent = fresh ? 0 : message.actions;
    this.#lost(wanted, this.#sent);
    this.#session = message.session_id;
    this.#windowSeconds = message.window_max_s;
    this.connected = true;
    this.#tries = 0;
    return fresh;
  }

  /** An action behind all sound so far; `first`: before all sound that is to be sent. */
  act(action, { first = false } = {}) {
    this.buffer.act(JSON.stringify(action), first ? this.#sent : this.buffer.end);
  }

  /** A text message as a line of the transcript, with times since recording began. */
  text(message) {
    const from = this.#base / this.bytesPerSecond;
    // A server that shuts down may cut a word in two: the next session hears the utterance again, and its line replaces this one.
    const final = message.is_final && message.ending !== "close";
    if (final) {
      this.#received = message.utterance;
      this.#inPause = message.ending === "pause";
      this.#finalized = Math.max(this.#finalized, this.#base + even(message.end * this.bytesPerSecond));
      this.buffer.forget(this.#finalized); // a new session would not need it again
    }
    return {
      key: `${this.#number}.${message.utterance}`,
      committed: message.committed,
      tentative: message.tentative,
      speakers: this.#runs(message.speakers),
      final,
      ending: message.ending ?? "",
      start: from + message.start,
      end: from + message.end,
      language: message.language,
      languageCode: message.language_code,
      lagMs: message.lag_ms,
    };
  }

  /** A message with the times of the words of a final: {key, words}, with times since recording began. */
  words(message) {
    const from = this.#base / this.bytesPerSecond;
    const words = message.words.map(({ speaker, ...word }) => {
      const times = { ...word, start: from + word.start, end: from + word.end };
      return speaker ? { ...times, speaker: this.#ids.of(speaker) } : times;
    });
    return { key: `${this.#number}.${message.utterance}`, words };
  }

  /** A message that says better than before who spoke: {key, speakers}. */
  speakers(message) {
    return { key: `${this.#number}.${message.utterance}`, speakers: this.#runs(message.speakers) };
  }

  #runs(runs = []) {
    return runs.map(({ speaker, text }) => ({ speaker: speaker ? this.#ids.of(speaker) : null, text }));
  }

  /** The next frame to send, bytes or the text of an action, or null. */
  next(most) {
    if (!this.connected) return null;
    if (this.#sent < this.buffer.start) {
      // The connection was so slow that the buffer overflowed: the server's clock does not count the lost audio.
      const gap = this.buffer.start - this.#sent;
      this.#lost(this.#sent, this.buffer.start);
      this.#base += gap;
      this.#sent = this.buffer.start;
    }
    const action = this.buffer.actionAfter(this.#actionsSent);
    if (action && action.at <= this.#sent) {
      this.#actionsSent = action.number;
      return action.text;
    }
    const bytes = this.buffer.read(this.#sent, action ? Math.min(most, action.at - this.#sent) : most);
    if (bytes) this.#sent += bytes.length;
    return bytes;
  }

  /** The connection ended. Whether to come back ("stop", "resume", "fresh") and after how long. */
  closed(code) {
    const action = this.#number ? (AFTER_CLOSE[code] ?? "resume") : "stop";
    if (action === "fresh") this.#session = "";
    this.connected = false;
    const delayMs = retryDelayMs(action === "fresh" ? 0 : this.#tries);
    this.#tries += 1;
    return { action, delayMs };
  }

  #lost(from, until) {
    if (until <= from) return;
    const [start, end] = [from / this.bytesPerSecond, until / this.bytesPerSecond];
    this.lostSeconds += end - start;
    // A slow connection loses many small pieces.
    addGap(this.gaps, start, end);
  }

  /** The position of the first audio without a final. An open utterance is at most as long as the server's window; it
   * counts twice, since the last bytes sent may not have arrived. Older audio was silence. */
  #firstWithoutFinal() {
    const open = even(2 * this.#windowSeconds * this.bytesPerSecond);
    return Math.max(this.#finalized, this.#sent - open);
  }
}

/** A whole number of samples. */
function even(bytes) {
  return 2 * Math.floor(bytes / 2);
}
