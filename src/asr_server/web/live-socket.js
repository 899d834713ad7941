// `WS /ws/transcribe` from the browser: sends what `link.js` says is next, comes back after a cut. Shows nothing.

import { liveUrl } from "./api.js";

const MOST_BUFFERED_BYTES = 256 * 1024; // beyond that the network is slow: the tape keeps the rest
const PIECE_BYTES = 32 * 1024;
const CHECK_MS = 2000;
const QUIET_MS = 10_000; // after so long without a word from the server, ask whether it is there
const PONG_MS = 8000;

export class LiveSocket {
  #link;
  #query;
  #on;
  #socket = null;
  #timer = 0;
  #check = 0;
  #lastHeard = 0;
  #pinged = 0;
  #refused = null; // the error the server told before it closed
  #flushing = false; // a flush is to be sent behind all sound
  #unanswered = 0; // flushes whose final has not come
  #flushed = []; // who waits for that final
  #changes = {}; // of the query since it was opened: a new session would have the old ones, and a dead line told nobody
  #over = false;

  /** `on`: {state(name, detail), line(line), fresh(), trouble(error)}; states: connecting, live, waiting, closed. */
  constructor(link, query, on) {
    this.#link = link;
    this.#query = query;
    this.#on = on;
  }

  open() {
    this.#check = setInterval(() => this.#look(), CHECK_MS);
    addEventListener("online", this.#hurry);
    this.#connect();
  }

  push(bytes) {
    this.#link.tape.push(bytes);
    this.#pump();
  }

  /** End the utterance that is open; resolves when the server has answered with its final. */
  flush() {
    this.#flushing = true;
    const answered = new Promise((resolve) => this.#flushed.push(resolve));
    this.#pump();
    return answered;
  }

  configure(changes) {
    Object.assign(this.#changes, changes);
    this.#tellChanges();
  }

  close() {
    const socket = this.#socket;
    this.#end();
    this.#socket = null;
    socket?.close(1000);
  }

  #connect() {
    this.#on.state("connecting");
    this.#refused = null;
    const socket = new WebSocket(liveUrl({ ...this.#query, ...this.#link.query() }));
    this.#socket = socket;
    this.#lastHeard = performance.now();
    this.#pinged = 0;
    // A socket that was given up may still report: only the present one is listened to.
    socket.onmessage = (event) => socket === this.#socket && this.#receive(JSON.parse(event.data));
    socket.onclose = (event) => socket === this.#socket && this.#closed(event.code);
  }

  #receive(message) {
    this.#lastHeard = performance.now();
    this.#pinged = 0;
    if (message.error) {
      this.#refused = { code: message.code, message: message.error.message };
      // Told before the first message it is why the server closes; later the session may go on.
      if (this.#link.connected) this.#on.trouble(this.#refused);
    } else if (message.status === "connected") {
      this.#greeted(message);
    } else if ("text" in message) {
      this.#heard(this.#link.text(message));
    }
  }

  #greeted(message) {
    if (this.#link.hello(message)) this.#on.fresh();
    this.#on.state("live", { lostSeconds: this.#link.lostSeconds });
    this.#tellChanges();
    this.#pump();
  }

  #heard(line) {
    this.#on.line(line);
    if (line.ending !== "flush") return;
    this.#unanswered = Math.max(0, this.#unanswered - 1);
    if (!this.#unanswered && !this.#flushing) for (const done of this.#flushed.splice(0)) done();
  }

  #pump() {
    const socket = this.#socket;
    if (!this.#link.connected || socket.readyState !== WebSocket.OPEN) return;
    while (socket.bufferedAmount < MOST_BUFFERED_BYTES) {
      const bytes = this.#link.next(PIECE_BYTES);
      if (!bytes) {
        this.#sendFlush();
        return;
      }
      socket.send(bytes);
    }
  }

  #sendFlush() {
    if (!this.#flushing) return;
    this.#flushing = false;
    this.#unanswered += 1;
    this.#socket.send('{"action":"flush"}');
  }

  #tellChanges() {
    if (!this.#link.connected || !Object.keys(this.#changes).length) return;
    this.#socket.send(JSON.stringify({ action: "config", ...this.#changes }));
  }

  #closed(code) {
    const { what, delayMs } = this.#link.closed(code);
    if (what === "stop") {
      this.#end();
      this.#on.state("closed", { code, error: this.#refused });
      return;
    }
    // The answer to a flush went down with the connection; asking again is harmless.
    if (this.#unanswered) this.#flushing = true;
    this.#unanswered = 0;
    this.#on.state("waiting", { code, error: this.#refused });
    this.#timer = setTimeout(() => this.#connect(), delayMs);
  }

  /** Sound keeps being recorded while a dead connection still looks open: find that out. */
  #look() {
    this.#pump();
    const now = performance.now();
    const open = this.#socket?.readyState === WebSocket.OPEN;
    if (this.#pinged && now - this.#pinged > PONG_MS) this.#giveUp();
    else if (open && !this.#pinged && now - this.#lastHeard > QUIET_MS) {
      this.#pinged = now;
      this.#socket.send('{"action":"ping"}');
    } else if (this.#socket?.readyState === WebSocket.CONNECTING && now - this.#lastHeard > QUIET_MS) this.#giveUp();
  }

  #giveUp() {
    const socket = this.#socket;
    this.#pinged = 0;
    this.#socket = null;
    socket.close();
    this.#closed(1006);
  }

  #hurry = () => {
    if (this.#link.connected || this.#over || this.#socket?.readyState === WebSocket.CONNECTING) return;
    clearTimeout(this.#timer);
    this.#connect();
  };

  #end() {
    this.#over = true;
    clearTimeout(this.#timer);
    clearInterval(this.#check);
    removeEventListener("online", this.#hurry);
  }
}
