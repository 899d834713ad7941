// Work on files in order, two at a time. What the server has no room for waits as long as it says, and is tried again.
//
// An item is {name, state, fraction, problem, ...} and whatever it was added with. Its states: "waiting" (with `untilMs`
// for one that the server sent away), what `run` reports ("preparing", "uploading", "transcribing", "translating"), and
// at the end "done", "cut", "failed" (with `problem`) or "cancelled".

export const AT_ONCE = 2;
export const MOST_ITEMS = 500;
const LONGEST_WAIT_MS = 3600_000; // of one item for a server without room, in all
const OVER = new Set(["done", "cut", "failed", "cancelled"]);

export class Queue {
  items = [];
  #run;
  #onchange;
  #running = 0;
  #pausedUntilMs = 0;
  #timer = 0;

  /** `run(item, signal, report)` does the work and resolves to "done" or "cut"; `report(changes)` changes the item. It
   * rejects with a problem; one with `retryAfterS` is no failure, but a reason to wait. `onchange(item)`: it changed. */
  constructor(run, onchange) {
    this.#run = run;
    this.#onchange = onchange;
  }

  /** Whether something waits or is at work. */
  get busy() {
    return this.items.some((item) => !isOver(item));
  }

  /** Add an item with these fields; null if there are too many. */
  add(fields) {
    if (this.items.length >= MOST_ITEMS) {
      const old = this.items.findIndex((item) => item.state === "done");
      if (old < 0) return null;
      this.items.splice(old, 1);
    }
    const item = { ...fields, state: "waiting", fraction: 0, problem: null, untilMs: 0, waitedMs: 0, abort: null };
    this.items.push(item);
    this.#change(item, {});
    this.#next();
    return item;
  }

  cancel(item) {
    if (isOver(item)) return;
    if (item.abort) item.abort.abort();
    else this.#change(item, { state: "cancelled", untilMs: 0 });
  }

  retry(item) {
    if (!isOver(item)) return;
    this.#change(item, { state: "waiting", fraction: 0, problem: null, untilMs: 0, waitedMs: 0 });
    this.#next();
  }

  /** Take an item that is over out of the list. */
  remove(item) {
    if (isOver(item)) this.items = this.items.filter((one) => one !== item);
  }

  #next() {
    clearTimeout(this.#timer);
    const waitMs = this.#pausedUntilMs - Date.now();
    if (waitMs > 0) {
      this.#timer = setTimeout(() => this.#next(), waitMs);
      return;
    }
    while (this.#running < AT_ONCE) {
      const item = this.items.find(({ state, abort }) => state === "waiting" && !abort);
      if (!item) return;
      this.#work(item);
    }
  }

  async #work(item) {
    this.#running++;
    item.abort = new AbortController();
    const { signal } = item.abort;
    let end;
    try {
      end = { state: await this.#run(item, signal, (changes) => signal.aborted || this.#change(item, changes)) };
    } catch (problem) {
      end = this.#ended(item, problem, signal);
    }
    item.abort = null;
    this.#running--;
    this.#change(item, end);
    this.#next();
  }

  #ended(item, problem, signal) {
    if (signal.aborted) return { state: "cancelled" };
    const waitMs = 1000 * (problem.retryAfterS ?? 0);
    if (!waitMs || item.waitedMs + waitMs > LONGEST_WAIT_MS) return { state: "failed", problem };
    // The others would be sent away too.
    const untilMs = (this.#pausedUntilMs = Math.max(this.#pausedUntilMs, Date.now() + waitMs));
    return { state: "waiting", fraction: 0, untilMs, waitedMs: item.waitedMs + waitMs };
  }

  #change(item, changes) {
    Object.assign(item, changes);
    this.#onchange(item);
  }
}

export function isOver({ state }) {
  return OVER.has(state);
}
