// The delay between the speaker and the words of a live session. It also counts while no words arrive.

const PARTIAL_MS = 2000; // the next words of an open line come within that
const SLOW_MS = 10_000; // from here on the server is too slow,
const NO_LONGER_SLOW_MS = 5000; // and below that no longer

export class Lag {
  slow = false;
  #line = null; // the last one: {final, lagMs, atMs}

  line({ final, lagMs }, nowMs) {
    this.#line = { final, lagMs, atMs: nowMs };
  }

  /** Milliseconds; null where no line has come. `unsentMs` of sound wait for the connection. */
  now(nowMs, unsentMs) {
    if (!this.#line) return null;
    const { final, lagMs, atMs } = this.#line;
    const waitedMs = final || nowMs - atMs < PARTIAL_MS ? 0 : nowMs - atMs;
    const ms = Math.max(lagMs + waitedMs, unsentMs);
    this.slow = ms >= (this.slow ? NO_LONGER_SLOW_MS : SLOW_MS);
    return ms;
  }
}
