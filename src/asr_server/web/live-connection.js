// The state of the live connection: which bytes to send next, and how to resume after a broken connection. It holds no
// socket and reads no clock; live-socket.js does.
//
// Positions are bytes since recording began, across all connections and sessions. A session of the server counts only
// its own bytes: `#base` is its start. A continuation is a place of the session from which any server can go on.
// docs/use/websocket.md, "When the connection breaks" and "Moving to another server", specifies this.

import { ReplayBuffer } from "./replay-buffer.js";
import { SpeakerIds } from "./speakers.js";
import { addGap } from "./transcript.js";

const FIRST_DELAY_MS = 250;
const LONGEST_DELAY_MS = 5000;
const MOST_COMMITTED = 2000; // characters that a server takes

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
  #actionsSent = 0; // of the session, over the present connection or one before
  #continuation = null; // the newest: {state, received_bytes, actions}
  #open = null; // the last message about the open utterance
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

  /** How the next connection begins: {query, frame}. `frame` is sent before all else, if there is one. */
  request() {
    if (!this.#session) return { query: { handover: "true" }, frame: null };
    const query = { session_id: this.#session, received: String(this.#received) };
    if (!this.#continuation) return { query, frame: null };
    const open = this.#open?.utterance > this.#received && this.#open.committed.length <= MOST_COMMITTED ? this.#open : null;
    const shown = open ? { utterance: open.utterance, committed: open.committed, end: open.end, speakers: open.speakers } : {};
    return { query: { ...query, handover: "true" }, frame: JSON.stringify({ action: "continue", state: this.#continuation.state, ...shown }) };
  }

  /** Whether another server would get all that it needs. */
  get movable() {
    const from = this.#continuation;
    return from !== null && this.buffer.start <= this.#base + from.received_bytes && this.buffer.hasActionsAfter(from.actions);
  }

  /** Process the server's first message: {fresh, exact}. `fresh`: it is a new session, whose lines replace the open ones of the
   * last. `exact`: the server says which actions it has; the others are sent again. If not, none is. */
  hello(message) {
    const fresh = !message.resumed;
    const exact = !fresh && message.actions !== undefined;
    const wanted = fresh ? this.#firstWithoutFinal() : this.#base + message.received_bytes;
    this.#sent = Math.max(wanted, this.buffer.start);
    if (fresh) {
      this.#base = this.#sent;
      this.#received = 0;
      this.#number += 1;
      this.#ids.fresh();
      this.#continuation = this.#open = null;
    } else {
      this.#base = this.#sent - message.received_bytes; // lost bytes are not in the server's count
    }
    this.#actionsSent = exact ? message.actions : 0;
    if (!exact) this.buffer.restartActions();
    this.#lost(wanted, this.#sent);
    this.#session = message.session_id;
    this.#windowSeconds = message.window_max_s;
    this.connected = true;
    this.#tries = 0;
    return { fresh, exact };
  }

  /** Any message may say from where another server can go on. */
  note({ continuation }) {
    if (!continuation) return;
    this.#continuation = continuation;
    const position = this.#base + continuation.received_bytes;
    this.#finalized = Math.max(this.#finalized, position);
    this.buffer.forget(position);
    this.buffer.forgetActions(continuation.actions);
  }

  /** Whether a message is about a final that has arrived, and not that final. */
  isLate(message) {
    return !("text" in message) && message.utterance > 0 && message.utterance <= this.#received;
  }

  /** An action behind all sound so far; `first`: before all sound that is to be sent. */
  act(action, { first = false } = {}) {
    this.buffer.act(JSON.stringify(action), first ? this.#sent : this.buffer.end);
  }

  /** A text message as a line of the transcript, with times since recording began. */
  text(message) {
    const from = this.#base / this.bytesPerSecond;
    if (message.is_final) {
      this.#received = message.utterance;
      this.#finalized = Math.max(this.#finalized, this.#base + even(message.end * this.bytesPerSecond));
      // Only audio that a new session would need again is kept; where servers hand sessions over, the continuation says which.
      if (!this.#continuation) this.buffer.forget(this.#finalized);
    }
    this.#open = message.is_final ? null : message;
    return {
      key: `${this.#number}.${message.utterance}`,
      committed: message.committed,
      tentative: message.tentative,
      speakers: this.#runs(message.speakers),
      final: message.is_final,
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
    if (this.#open?.utterance === message.utterance) this.#open = { ...this.#open, speakers: message.speakers };
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
    let action = this.#number ? (AFTER_CLOSE[code] ?? "resume") : "stop";
    // A server of another version may not read the state of this one's.
    if (code === 4000 && this.#continuation && !this.connected) action = "fresh";
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
