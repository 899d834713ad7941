// The live connection as a pure state: what to send next, how to come back after a cut. No socket, no clock.
//
// Positions are bytes since recording began, across all connections and sessions. A session of the server knows only its
// own bytes: `#base` is where it began. The server's page on this is docs/websocket.md, "When the connection breaks".

import { Tape } from "./tape.js";

const FIRST_DELAY_MS = 250;
const LONGEST_DELAY_MS = 5000;

// What a close code means for the next try; any other code, a cut among them, means to resume.
export const AFTER_CLOSE = {
  1000: "stop", // we closed
  1009: "stop", // a frame too long: the same would come again
  3000: "stop", // no key, or a wrong one
  3003: "stop", // a page that may not call
  4000: "stop", // a wrong parameter
  4009: "stop", // another page has taken the session over
  4004: "fresh", // the server does not keep the session any more
};

export class Link {
  #base = 0;
  #sent = 0;
  #heard = 0; // up to here all finals are there
  #session = "";
  #number = 0; // of the session, for the keys of lines
  #received = 0;
  #tries = 0;
  #windowSeconds = 30;

  constructor({ limitBytes, bytesPerSecond }) {
    this.tape = new Tape(limitBytes);
    this.bytesPerSecond = bytesPerSecond;
    this.connected = false;
    this.lostSeconds = 0;
  }

  /** The query parameters of the next connection. */
  query() {
    return this.#session ? { session_id: this.#session, received: String(this.#received) } : {};
  }

  /** The server's first message. True if this is a new session, whose lines replace the open ones of the last. */
  hello(message) {
    const fresh = !message.resumed;
    const wanted = fresh ? this.#unheard() : this.#base + message.received_bytes;
    this.#sent = Math.max(wanted, this.tape.start);
    if (fresh) {
      this.#base = this.#sent;
      this.#received = 0;
      this.#number += 1;
    } else {
      this.#base = this.#sent - message.received_bytes; // what was lost is not in the server's count
    }
    this.lostSeconds += (this.#sent - wanted) / this.bytesPerSecond;
    this.#session = message.session_id;
    this.#windowSeconds = message.window_max_s;
    this.connected = true;
    this.#tries = 0;
    return fresh;
  }

  /** A text message as a line of the transcript, with times since recording began. */
  text(message) {
    const from = this.#base / this.bytesPerSecond;
    if (message.is_final) {
      this.#received = message.utterance;
      this.#heard = Math.max(this.#heard, this.#base + even(message.end * this.bytesPerSecond));
      // Only what a new session would want again has to stay.
      this.tape.forget(this.#heard);
    }
    return {
      key: `${this.#number}.${message.utterance}`,
      committed: message.committed,
      tentative: message.tentative,
      final: message.is_final,
      ending: message.ending ?? "",
      start: from + message.start,
      end: from + message.end,
      language: message.language,
      languageCode: message.language_code,
      lagMs: message.lag_ms,
    };
  }

  /** The next bytes to send, or null. */
  next(most) {
    if (!this.connected) return null;
    if (this.#sent < this.tape.start) {
      // A connection so slow that the tape ran over: the server's clock goes on without what is gone.
      const gap = this.tape.start - this.#sent;
      this.lostSeconds += gap / this.bytesPerSecond;
      this.#base += gap;
      this.#sent = this.tape.start;
    }
    const bytes = this.tape.read(this.#sent, most);
    if (bytes) this.#sent += bytes.length;
    return bytes;
  }

  /** The connection ended. Whether to come back ("stop", "resume", "fresh") and after how long. */
  closed(code) {
    const what = this.#number ? (AFTER_CLOSE[code] ?? "resume") : "stop";
    if (what === "fresh") this.#session = "";
    this.connected = false;
    const delayMs = what === "fresh" ? FIRST_DELAY_MS : Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** this.#tries);
    this.#tries += 1;
    return { what, delayMs };
  }

  /** Where the audio begins that no final is made of. An open utterance is no longer than the server's window; twice
   * that, since what was sent last may not have arrived. What lies further back was silence. */
  #unheard() {
    const open = even(2 * this.#windowSeconds * this.bytesPerSecond);
    return Math.max(this.#heard, this.#sent - open);
  }
}

/** A whole number of samples. */
function even(bytes) {
  return 2 * Math.floor(bytes / 2);
}
