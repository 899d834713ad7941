// The rows of an open transcript in their order, and the edits that can be undone.
//
// A change is {remove: [n], put: [row]}: `put` replaces rows of the same `n`. All methods that change return what was done,
// so that a view and the store can follow, or null.

const MOST_EDITS = 1000;

export class RowHistory {
  #rows = [];
  #past = []; // {undo: change, redo: change}
  #future = [];

  get rows() {
    return this.#rows;
  }

  get canUndo() {
    return this.#past.length > 0;
  }

  get canRedo() {
    return this.#future.length > 0;
  }

  row(n) {
    return this.#rows[this.index(n)] ?? null;
  }

  /** -1 if there is none. */
  index(n) {
    const at = this.#place(n);
    return this.#rows[at]?.n === n ? at : -1;
  }

  /** A change that is no edit: rows that arrive, or text while it is typed. */
  apply({ remove = [], put = [] }) {
    for (const n of remove) {
      const at = this.index(n);
      if (at >= 0) this.#rows.splice(at, 1);
    }
    for (const row of put) {
      const at = this.#place(row.n);
      this.#rows.splice(at, this.#rows[at]?.n === row.n ? 1 : 0, row);
    }
    return { remove, put };
  }

  /** A change from elsewhere. Where it gives rows a speaker, the rows of all edits get it too. Where it changes the text of a row
   * that was edited, nothing can be undone any more: that would bring the text back beside the new one. */
  arrive(change) {
    const { remove = [], put = [] } = change;
    const known = put.map((row) => [row, this.row(row.n)]);
    const other = new Set([...remove, ...known.filter(([row, was]) => was?.text !== row.text).map(([row]) => row.n)]);
    const given = new Map(known.filter(([row, was]) => was && was.speaker !== row.speaker).map(([row, was]) => [row.n, { from: was.speaker, to: row.speaker }]));
    const edits = [...this.#past, ...this.#future].flatMap(({ undo, redo }) => [undo, redo]);
    if (edits.some((edit) => [...edit.remove, ...edit.put.map(({ n }) => n)].some((n) => other.has(n)))) {
      this.#past = [];
      this.#future = [];
    } else if (given.size) for (const edit of edits) edit.put = edit.put.map((row) => spokenBy(row, given.get(row.n)));
    return this.apply(change);
  }

  /** An edit. `before` are the rows to come back to, if they are not the present ones. */
  edit({ remove = [], put = [] }, before = []) {
    const touched = [...remove, ...put.map((row) => row.n)];
    const known = new Map(touched.map((n) => [n, this.row(n)]));
    for (const row of before) known.set(row.n, row);
    const back = [...known].filter(([, row]) => row).map(([, row]) => row);
    const undo = { remove: [...known].filter(([, row]) => !row).map(([n]) => n), put: back };
    this.#past.push({ undo, redo: { remove, put } });
    if (this.#past.length > MOST_EDITS) this.#past.shift();
    this.#future = [];
    return this.apply({ remove, put });
  }

  undo() {
    const edit = this.#past.pop();
    if (!edit) return null;
    this.#future.push(edit);
    return this.apply(edit.undo);
  }

  redo() {
    const edit = this.#future.pop();
    if (!edit) return null;
    this.#past.push(edit);
    return this.apply(edit.redo);
  }

  /** The first index whose row has `n` or a later key. */
  #place(n) {
    let [low, high] = [0, this.#rows.length];
    if (!high || this.#rows[high - 1].n < n) return high;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#rows[middle].n < n) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

function spokenBy(row, given) {
  return given && row.speaker === given.from ? { ...row, speaker: given.to } : row;
}
