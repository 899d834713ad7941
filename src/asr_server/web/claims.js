// Which tab works on which transcript, so that the others see when it has gone.
//
// A tab holds a lock on each transcript that it works on, and the browser ends the lock with the tab, however it went. Pages
// that are not secure have no locks: there, tabs are asked once which transcripts are theirs.

const ANSWER_MS = 1000;

export class Claims {
  #name;
  #left;
  #releases = new Map(); // id of a transcript of this tab -> ends the lock
  #watched = new Set();
  #channel = null;

  /** `left(id)` is called when no tab works on a watched transcript. */
  constructor(name, left) {
    this.#name = name;
    this.#left = left;
  }

  /** Work on this transcript until `release`. */
  async take(id) {
    if (this.#releases.has(id)) return;
    this.#releases.set(id, () => {});
    const locks = globalThis.navigator?.locks;
    if (!locks) return void this.#ask();
    await new Promise((held) => {
      locks.request(this.#lock(id), () => {
        held();
        return new Promise((release) => this.#releases.set(id, release));
      });
    });
  }

  release(id) {
    this.#releases.get(id)?.();
    this.#releases.delete(id);
  }

  async watch(id) {
    if (this.#watched.has(id) || this.#releases.has(id)) return;
    this.#watched.add(id);
    const locks = globalThis.navigator?.locks;
    if (!locks) return this.#ask();
    await locks.request(this.#lock(id), { mode: "shared" }, () => this.#left(id));
    this.#watched.delete(id);
  }

  #lock(id) {
    return `${this.#name} ${id}`;
  }

  /** Ask the other tabs once, and answer them from then on. */
  #ask() {
    if (this.#channel || !globalThis.BroadcastChannel) return;
    this.#channel = new BroadcastChannel(`${this.#name} claims`);
    this.#channel.unref?.(); // Node would wait for it
    this.#channel.onmessage = ({ data }) => {
      if (data === "whose") for (const id of this.#releases.keys()) this.#channel.postMessage(id);
      else this.#watched.delete(data);
    };
    this.#channel.postMessage("whose");
    setTimeout(() => {
      for (const id of this.#watched) if (!this.#releases.has(id)) this.#left(id);
    }, ANSWER_MS).unref?.();
  }
}
