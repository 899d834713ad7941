// The socket of `/ws/transcribe`: sends what live-connection.js says is next, and reconnects after a broken connection.

import { liveUrl } from "./api.js";

const MOST_BUFFERED_BYTES = 256 * 1024; // beyond that the network is slow, and the replay buffer keeps the rest
const PIECE_BYTES = 32 * 1024;
const CHECK_MS = 2000;
const QUIET_MS = 10_000; // after so long without a message, ping the server
const PONG_MS = 8000;
const FLUSH = { action: "flush" };

export class LiveSocket {
  #connection;
  #query;
  #on;
  #socket = null;
  #timer = 0;
  #check = 0;
  #lastMessageAt = 0;
  #pinged = 0;
  #lastError = null; // the error that the server sent before it closed
  #unanswered = 0; // flushes whose final has not arrived
  #flushWaiters = []; // to be resolved with that final
  #changes = {}; // of the configuration since the page connected: every new connection sends them again
  #ended = false;

  /** `on`: {state(name, detail), line(line), words({key, words}), speakers({key, speakers}), unlabelled(), fresh(),
   * error(error)}; states: connecting, live, waiting, closed. */
  constructor(liveConnection, query, on) {
    this.#connection = liveConnection;
    this.#query = query;
    this.#on = on;
  }

  open() {
    this.#check = setInterval(() => this.#checkAlive(), CHECK_MS);
    addEventListener("online", this.#reconnectNow);
    this.#connect();
  }

  push(bytes) {
    this.#connection.buffer.push(bytes);
    this.#pump();
  }

  /** End the open utterance; resolves when its final has arrived. */
  flush() {
    this.#unanswered += 1;
    this.#connection.act(FLUSH);
    const answered = new Promise((resolve) => this.#flushWaiters.push(resolve));
    this.#pump();
    return answered;
  }

  configure(changes) {
    Object.assign(this.#changes, changes);
    this.#connection.act({ action: "config", ...this.#changes });
    this.#pump();
  }

  close() {
    const socket = this.#socket;
    this.#end();
    this.#socket = null;
    socket?.close(1000);
  }

  #connect() {
    this.#on.state("connecting");
    this.#lastError = null;
    const socket = new WebSocket(liveUrl({ ...this.#query, ...this.#connection.query }));
    socket.onmessage = (event) => this.#heard(socket, JSON.parse(event.data));
    socket.onclose = (event) => this.#gone(socket, event.code);
    this.#socket = socket;
    this.#lastMessageAt = performance.now();
    this.#pinged = 0;
  }

  // An abandoned socket may still report: only the events of the present one count.

  #heard(socket, message) {
    if (socket !== this.#socket) return;
    this.#lastMessageAt = performance.now();
    this.#pinged = 0;
    this.#receive(message);
  }

  #gone(socket, code) {
    if (socket !== this.#socket) return;
    this.#socket = null;
    this.#pinged = 0;
    this.#closed(code);
  }

  #receive(message) {
    if (message.error) {
      this.#lastError = { code: message.code, message: message.error.message };
      // An error before the first message is the reason of the close; later the session may continue.
      if (this.#connection.connected) this.#on.error(this.#lastError);
    } else if (message.status === "connected") {
      this.#onHello(message);
    } else if (message.type === "speaker_update") {
      this.#on.speakers(this.#connection.speakers(message));
    } else if (message.status === "speakers_unavailable") {
      this.#on.unlabelled();
    } else if (message.status === "reconnect") {
      this.#connection.leave();
    } else if ("text" in message) {
      this.#onLine(this.#connection.text(message));
    } else if (message.words) {
      this.#on.words(this.#connection.words(message));
    }
  }

  #onHello(message) {
    const fresh = this.#connection.hello(message);
    if (fresh) this.#on.fresh();
    this.#on.state("live", { lostSeconds: this.#connection.lostSeconds });
    if (message.speakers === false) this.#on.unlabelled();
    if (fresh) {
      if (Object.keys(this.#changes).length) this.#connection.act({ action: "config", ...this.#changes }, { first: true });
      // The final of a flush was lost with the session; flushing again is harmless.
      if (this.#unanswered) this.#connection.act(FLUSH);
      this.#unanswered = Math.min(1, this.#unanswered);
    }
    this.#pump();
  }

  #onLine(line) {
    this.#on.line(line);
    if (line.ending !== "flush") return;
    this.#unanswered = Math.max(0, this.#unanswered - 1);
    if (!this.#unanswered) for (const done of this.#flushWaiters.splice(0)) done();
  }

  #pump() {
    const socket = this.#socket;
    if (!this.#connection.connected || socket?.readyState !== WebSocket.OPEN) return;
    for (let frame; socket.bufferedAmount < MOST_BUFFERED_BYTES && (frame = this.#connection.next(PIECE_BYTES)); ) socket.send(frame);
  }

  #closed(code) {
    const { action, delayMs } = this.#connection.closed(code);
    if (action === "stop") {
      this.#end();
      this.#on.state("closed", { code, error: this.#lastError });
      return;
    }
    this.#on.state("waiting", { code, error: this.#lastError });
    this.#timer = setTimeout(() => this.#connect(), delayMs);
  }

  /** Recording goes on while a dead connection still looks open: detect that. */
  #checkAlive() {
    this.#pump();
    const now = performance.now();
    const open = this.#socket?.readyState === WebSocket.OPEN;
    if (this.#pinged && now - this.#pinged > PONG_MS) this.#abandon();
    else if (open && !this.#pinged && now - this.#lastMessageAt > QUIET_MS) {
      this.#pinged = now;
      this.#socket.send('{"action":"ping"}');
    } else if (this.#socket?.readyState === WebSocket.CONNECTING && now - this.#lastMessageAt > QUIET_MS) this.#abandon();
  }

  #abandon() {
    const socket = this.#socket;
    this.#gone(socket, 1006);
    socket.close();
  }

  #reconnectNow = () => {
    if (this.#connection.connected || this.#ended || this.#socket?.readyState === WebSocket.CONNECTING) return;
    clearTimeout(this.#timer);
    this.#connect();
  };

  #end() {
    this.#ended = true;
    clearTimeout(this.#timer);
    clearInterval(this.#check);
    removeEventListener("online", this.#reconnectNow);
  }
}
