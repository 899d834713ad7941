// Translations of finished rows, one request at a time for all rows that wait. It fails alone: the rows stay as they are.

const MOST_TEXTS = 40; // in a request: a line of a conversation comes back within seconds
const MOST_WAITING = 400;
const DELAYS_MS = [2000, 8000, 30_000]; // before each further try
// What may pass; another try changes nothing about other errors.
const PASSING = new Set(["unreachable", "rate_limit_exceeded", "deadline_exceeded", "translation_failed", "internal_error", "shutting_down"]);

export class LiveTranslator {
  #translate;
  #on;
  #waiting = new Map(); // row number -> text
  #known = new Map(); // text -> translation, of the last rows: a row that is cut anew keeps its own
  #busy = false;
  #failures = 0;
  #timer = 0;
  #target = "";

  /** `translate(texts, target)` resolves to the translations in order, null for a text that has none, and rejects with a
   * `Problem`. `on`: {translated(n, text, translation), problem(problem or null)}. */
  constructor(translate, on) {
    this.#translate = translate;
    this.#on = on;
  }

  get target() {
    return this.#target;
  }

  /** Translate rows from now on into this language; "" stops. */
  set target(language) {
    this.#target = language;
    this.#known.clear();
    this.#forget();
    this.#on.problem(null);
  }

  add(n, text) {
    if (!this.#target || !text.trim()) return;
    if (this.#known.has(text)) {
      this.#on.translated(n, text, this.#known.get(text));
      return;
    }
    this.#waiting.set(n, text);
    // An endpoint that is away for long must not collect the whole day.
    if (this.#waiting.size > MOST_WAITING) this.#waiting.delete(this.#waiting.keys().next().value);
    if (!this.#timer) this.#next();
  }

  async #next() {
    if (this.#busy || !this.#waiting.size) return;
    this.#busy = true;
    const target = this.#target;
    const batch = [...this.#waiting].slice(0, MOST_TEXTS);
    try {
      const found = await this.#translate(batch.map(([, text]) => text), target);
      if (target === this.#target) this.#succeeded(batch, found);
    } catch (problem) {
      if (target === this.#target) this.#failed(problem);
    }
    this.#busy = false;
    if (!this.#timer) this.#next();
  }

  #succeeded(batch, found) {
    this.#failures = 0;
    this.#on.problem(null);
    batch.forEach(([n, text], i) => {
      if (this.#waiting.get(n) === text) this.#waiting.delete(n);
      if (found[i] === null) return;
      this.#remember(text, found[i]);
      this.#on.translated(n, text, found[i]);
    });
  }

  #failed(problem) {
    this.#on.problem(problem);
    this.#failures += 1;
    if (!PASSING.has(problem.code) || this.#failures > DELAYS_MS.length) {
      this.#forget();
      return;
    }
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      this.#next();
    }, DELAYS_MS[this.#failures - 1]);
  }

  #forget() {
    clearTimeout(this.#timer);
    this.#timer = this.#failures = 0;
    this.#waiting.clear();
  }

  #remember(text, translation) {
    this.#known.set(text, translation);
    if (this.#known.size > MOST_WAITING) this.#known.delete(this.#known.keys().next().value);
  }
}
