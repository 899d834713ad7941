// The last minutes of the recording by position, and the actions between its bytes: what may have to be sent, or sent again.

const MOST_ACTIONS = 1000;

export class ReplayBuffer {
  #pieces = []; // {at, bytes}, without gaps, in order
  #actions = []; // {at, number, text}, in order: each behind all bytes before `at`
  #numbered = 0; // actions of the session so far
  #limit;

  constructor(limitBytes, start = 0) {
    this.#limit = limitBytes;
    this.start = start; // position of the first byte that is kept
    this.end = start; // position behind the last byte
  }

  /** Append; beyond the limit the oldest bytes are dropped. */
  push(bytes) {
    if (!bytes.length) return;
    this.#pieces.push({ at: this.end, bytes });
    this.end += bytes.length;
    this.forget(this.end - this.#limit);
  }

  /** Drop what lies before `position`. Only whole pieces are dropped, so a little more may stay. */
  forget(position) {
    while (this.#pieces.length > 1 && this.#pieces[1].at <= position) this.#pieces.shift();
    this.start = this.#pieces.length ? this.#pieces[0].at : this.end;
  }

  /** Up to `most` bytes from `position` on, or null when there are none. */
  read(position, most) {
    if (position < this.start || position >= this.end) return null;
    const until = Math.min(this.end, position + most);
    const out = new Uint8Array(until - position);
    for (let i = this.#find(position); i < this.#pieces.length && this.#pieces[i].at < until; i++) {
      const { at, bytes } = this.#pieces[i];
      const from = Math.max(0, position - at);
      out.set(bytes.subarray(from, Math.min(bytes.length, until - at)), at + from - position);
    }
    return out;
  }

  /** Append an action behind the bytes before `at`. Beyond the limit the oldest are dropped. */
  act(text, at = this.end) {
    this.#numbered += 1;
    this.#actions.push({ at, number: this.#numbered, text });
    if (this.#actions.length > MOST_ACTIONS) this.#actions.shift();
  }

  /** The action behind the first `number` actions of the session, {at, number, text}, or undefined. */
  actionAfter(number) {
    return this.#actions.find((action) => action.number > number);
  }

  /** A new session counts its own actions. */
  restartActions() {
    this.#actions = [];
    this.#numbered = 0;
  }

  #find(position) {
    let low = 0;
    let high = this.#pieces.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.#pieces[middle].at <= position) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}
