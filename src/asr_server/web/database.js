// Tables of a database: in IndexedDB, or in memory where the browser gives none. Keys are [id, n].
//
// get(table, key), slice(table, id | null, from, count) -> [[key, value]] in order, change(tables, work).
// usage(), persist(). `work(read)` returns the changes that are made in the same transaction: [table, key, value],
// [table, key] to delete one entry, or [table, [id]] to delete all entries of an id; or null for none. `read(table, key)`
// reads in that transaction.

import { openDB } from "./vendor/idb.js";

export const TABLES = ["transcripts", "rows", "pcm", "media"];
const SLICE = 200; // entries read at a time: reading many would take a long task

/** Call `each(value, key)` for all of a table, or of an id in it, in order and in slices, until it returns true. */
export async function readAll(database, table, id, each) {
  let last = null;
  for (;;) {
    const entries = await database.slice(table, id, last, SLICE);
    for (const [key, value] of entries) if (each(value, key)) return;
    if (entries.length < SLICE) return;
    last = entries.at(-1)[0];
  }
}

export class IndexedDatabase {
  #db;

  static async open(name) {
    const database = new IndexedDatabase();
    database.#db = await openDB(name, 1, {
      upgrade(db) {
        for (const table of TABLES) db.createObjectStore(table);
      },
      // A newer page in another tab wants to change the tables; this tab's next call fails and says so.
      blocking: () => database.#db.close(),
    });
    return database;
  }

  get(table, key) {
    return this.#db.get(table, key);
  }

  async slice(table, id, from, count) {
    const after = from === null ? undefined : IDBKeyRange.lowerBound(from, true);
    const range = id === null ? after : IDBKeyRange.bound(from ?? [id], [id, []], from !== null);
    const entries = this.#db.transaction(table).objectStore(table);
    const [keys, values] = await Promise.all([entries.getAllKeys(range, count), entries.getAll(range, count)]);
    return keys.map((key, i) => [key, values[i]]);
  }

  async change(tables, work) {
    const transaction = this.#db.transaction(tables, "readwrite");
    try {
      const changes = await work((table, key) => transaction.objectStore(table).get(key));
      for (const [table, key, value] of changes ?? []) {
        const entries = transaction.objectStore(table);
        const made = value !== undefined ? entries.put(value, key) : entries.delete(key.length > 1 ? key : within(key[0]));
        made.catch(() => {}); // the transaction fails with the same error
      }
      await transaction.done;
      return changes !== null;
    } catch (error) {
      // The cause of an abort, for example a full disk, is told by the transaction and not by its first failed request.
      throw transaction.error ?? error;
    }
  }

  /** Bytes are null where the browser does not say, as on pages that are not secure. */
  async usage() {
    const [estimate, persisted] = await Promise.all([navigator.storage?.estimate?.(), navigator.storage?.persisted?.()]);
    return { usedBytes: estimate?.usage ?? null, quotaBytes: estimate?.quota ?? null, persisted: persisted ?? false };
  }

  async persist() {
    return (await navigator.storage?.persist?.()) ?? false;
  }
}

function within(id) {
  return IDBKeyRange.bound([id], [id, []]);
}

export class MemoryDatabase {
  #tables = Object.fromEntries(TABLES.map((table) => [table, new Map()])); // JSON of the key -> [key, value]
  #changing = Promise.resolve(); // changes are made one after the other, as transactions are

  async get(table, key) {
    return this.#get(table, key);
  }

  #get(table, key) {
    return structuredClone(this.#tables[table].get(JSON.stringify(key))?.[1]);
  }

  async slice(table, id, from, count) {
    const entries = [...this.#tables[table].values()].filter(([key]) => id === null || key[0] === id);
    entries.sort(([a], [b]) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : a[1] - b[1]));
    const behind = entries.filter(([key]) => !from || key[0] > from[0] || (key[0] === from[0] && key[1] > from[1]));
    return behind.slice(0, count).map(([key, value]) => [key, structuredClone(value)]);
  }

  change(tables, work) {
    const mine = this.#changing.then(() => this.#change(work));
    this.#changing = mine.catch(() => {});
    return mine;
  }

  async #change(work) {
    const changes = await work(async (table, key) => this.#get(table, key));
    for (const [table, key, value] of changes ?? []) {
      const entries = this.#tables[table];
      if (value !== undefined) entries.set(JSON.stringify(key), [key, structuredClone(value)]);
      else if (key.length > 1) entries.delete(JSON.stringify(key));
      else for (const [name, [found]] of entries) if (found[0] === key[0]) entries.delete(name);
    }
    return changes !== null;
  }

  async usage() {
    return { usedBytes: null, quotaBytes: null, persisted: false };
  }

  async persist() {
    return false;
  }
}
