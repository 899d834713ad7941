// What this browser keeps: transcripts with their rows and sound, in IndexedDB.
//
// store.open()                 await it once before anything else; calling it again is harmless
// store.persistent             false where the browser keeps nothing and all is lost with the tab (private windows)
// list(), get(id)              transcripts, newest first; one of them, or null
// create(metadata), update(id, changes)   the transcript as it is then, or null if it is gone; `changes` may be a function
//                              of the transcript as it is now, which no other tab changes meanwhile
// rows(id), rowsAt(id, ns), putRows(id, rows), changeRows(id, ns to remove, rows to put)
// putSound(id, file), appendSound(id, blob), sound(id) -> Blob | null    a playable WAV of PCM pieces (16 kHz, 16 bit, mono)
// remove(...ids)               -> undo(); really removed after UNDO_S
// firstRow(id), damaged        for lists: the first row, or undefined; how many stored transcripts cannot be read
// usage(), persist()           {usedBytes, quotaBytes, persisted}; ask the browser not to clear the storage by itself
// onchange(listener)           listener({type: "transcript" | "rows" | "removed", id, here}), also for changes in other tabs;
//                              "rows" has `removed` and `put`, the keys, and `rows`, those put, if the change was made here
// onproblem(listener)          listener(code): "storage_full" or "storage_failed". Both return a function that ends it.
//
// Writing methods never throw: they resolve to false (or null) if nothing was written, and tell the cause to `onproblem`.
// attempt(work)                does the same for work of several steps, which may also read
// A transcript in state "open" belongs to the tab that made it so; when that tab is gone, its state becomes "cut".

import { Claims } from "./claims.js";
import { IndexedDatabase, MemoryDatabase, readAll } from "./database.js";
import { wavHead } from "./wav.js";

export const UNDO_S = 30;
const TEXT_RESERVE_BYTES = 32 * 1024 * 1024; // sound leaves this much for text
const STATES = new Set(["open", "cut", "failed", "complete"]);
const EMPTY = { title: "", kind: "file", durationS: 0, language: "", languageCode: "", model: "", state: "open", options: {}, speakers: {} };

export class Store {
  #name;
  #database = null;
  #opening = null;
  #channel = null;
  #changes = new Set();
  #problems = new Set();
  #claims;
  #pieces = new Map(); // id -> number of the next piece of sound, a promise
  #timers = new Map(); // id -> timer of the removal
  persistent = true;
  damaged = 0;

  constructor(name = "asr-server") {
    this.#name = name;
    this.#claims = new Claims(name, (id) => this.#cut(id));
  }

  open() {
    return (this.#opening ??= this.#open());
  }

  async #open() {
    try {
      this.#database = await IndexedDatabase.open(this.#name);
    } catch {
      this.#database = new MemoryDatabase();
      this.persistent = false;
    }
    if (globalThis.BroadcastChannel) {
      this.#channel = new BroadcastChannel(this.#name);
      this.#channel.unref?.(); // Node would wait for it
      this.#channel.onmessage = ({ data }) => this.#heard(data);
    }
    for (const transcript of (await this.#all()).filter(isWhole)) {
      if (transcript.state === "open") this.#claims.watch(transcript.id);
      // A tab that was closed within the time for undoing has removed nothing.
      if (transcript.removedAt) this.#removeAfter(transcript.id, transcript.removedAt + 1000 * UNDO_S - Date.now());
    }
  }

  // -- transcripts ----------------------------------------------------------------------------------------------------

  async list() {
    const all = await this.#all();
    const found = all.filter((transcript) => isWhole(transcript) && !transcript.removedAt);
    this.damaged = all.filter((transcript) => !isWhole(transcript)).length;
    return found.sort((a, b) => b.createdAt - a.createdAt);
  }

  async get(id) {
    const found = await this.#database.get("transcripts", [id, 0]);
    return isWhole(found) && !found.removedAt ? found : null;
  }

  async create(metadata) {
    const now = Date.now();
    const transcript = { ...EMPTY, createdAt: now, changedAt: now, ...metadata, id: freshId() };
    if (transcript.state === "open") await this.#claims.take(transcript.id);
    await this.#write(["transcripts"], () => [["transcripts", [transcript.id, 0], transcript]]);
    this.#tell({ type: "transcript", id: transcript.id });
    return transcript;
  }

  async update(id, changes) {
    if (changes.state === "open") await this.#claims.take(id);
    let changed = null;
    const written = await this.#write(["transcripts"], async (read) => {
      const now = await read("transcripts", [id, 0]);
      if (!now) return null;
      changed = { ...now, ...(typeof changes === "function" ? changes(now) : changes), id, changedAt: Date.now() };
      return [["transcripts", [id, 0], changed]];
    });
    if (changes.state !== undefined && changes.state !== "open") this.#claims.release(id);
    if (!written) return null;
    this.#tell({ type: "transcript", id });
    return changed;
  }

  // -- rows -----------------------------------------------------------------------------------------------------------

  async rows(id) {
    const found = [];
    await readAll(this.#database, "rows", id, (row) => void (typeof row?.text === "string" && found.push(row)));
    return found;
  }

  async firstRow(id) {
    return (await this.#database.slice("rows", id, null, 1))[0]?.[1];
  }

  async rowsAt(id, ns) {
    const found = await Promise.all(ns.map((n) => this.#database.get("rows", [id, n])));
    return found.filter(Boolean);
  }

  putRows(id, rows) {
    return this.changeRows(id, [], rows);
  }

  /** Both in one step, so that no crash leaves half of an edit. */
  async changeRows(id, ns, rows) {
    const written = await this.#write(["transcripts", "rows"], async (read) => {
      const transcript = await read("transcripts", [id, 0]);
      if (!transcript) return null;
      return [
        ...ns.map((n) => ["rows", [id, n]]),
        ...rows.map((row) => ["rows", [id, row.n], row]),
        ["transcripts", [id, 0], { ...transcript, changedAt: Date.now() }],
      ];
    });
    if (written) this.#tell({ type: "rows", id, removed: ns, put: rows.map((row) => row.n) }, rows);
    return written;
  }

  async #all() {
    const found = [];
    await readAll(this.#database, "transcripts", null, (transcript) => void found.push(transcript));
    return found;
  }

  // -- sound ----------------------------------------------------------------------------------------------------------

  putSound(id, file) {
    return this.#putSound("media", id, 0, file);
  }

  appendSound(id, blob) {
    // The number is taken at once, so that pieces stay in the order of the calls.
    const mine = this.#pieces.get(id) ?? this.#count(id);
    const next = mine.then((n) => n + 1);
    next.catch(() => this.#pieces.delete(id)); // the next call counts again
    this.#pieces.set(id, next);
    return this.#putSound("pcm", id, mine, blob);
  }

  #putSound(table, id, number, blob) {
    return this.attempt(async () => {
      const n = await number;
      return (await this.#accepts(id, blob.size)) && this.#database.change([table], () => [[table, [id, n], blob]]);
    });
  }

  async #count(id) {
    let next = 0;
    await readAll(this.#database, "pcm", id, (_, key) => void (next = key[1] + 1));
    return next;
  }

  async sound(id) {
    const file = await this.#database.get("media", [id, 0]);
    if (file) return file;
    const pieces = [];
    await readAll(this.#database, "pcm", id, (piece) => void pieces.push(piece));
    return pieces.length ? new Blob([wavHead(pieces.reduce((sum, piece) => sum + piece.size, 0)), ...pieces], { type: "audio/wav" }) : null;
  }

  async #accepts(id, sizeBytes) {
    if (!(await this.#database.get("transcripts", [id, 0]))) return false;
    const { usedBytes, quotaBytes } = await this.usage();
    if (quotaBytes === null || usedBytes + sizeBytes + TEXT_RESERVE_BYTES <= quotaBytes) return true;
    this.#report("storage_full");
    return false;
  }

  // -- removing -------------------------------------------------------------------------------------------------------

  async remove(...ids) {
    for (const id of ids) {
      await this.#setRemoved(id, Date.now());
      this.#removeAfter(id, 1000 * UNDO_S);
    }
    return async () => {
      for (const id of ids) {
        clearTimeout(this.#timers.get(id));
        this.#timers.delete(id);
        await this.#setRemoved(id, undefined);
      }
    };
  }

  async #setRemoved(id, removedAt) {
    const written = await this.#write(["transcripts"], async (read) => {
      const transcript = await read("transcripts", [id, 0]);
      return transcript ? [["transcripts", [id, 0], { ...transcript, removedAt }]] : null;
    });
    if (written) this.#tell({ type: removedAt ? "removed" : "transcript", id });
  }

  #removeAfter(id, ms) {
    const timer = setTimeout(() => this.#purge(id), Math.max(ms, 0));
    timer.unref?.(); // Node would wait for it
    this.#timers.set(id, timer);
  }

  #purge(id) {
    this.#timers.delete(id);
    this.#pieces.delete(id);
    this.#claims.release(id);
    return this.#write(["transcripts", "rows", "pcm", "media"], async (read) => {
      // It may have been restored in another tab.
      const transcript = await read("transcripts", [id, 0]);
      return transcript?.removedAt ? ["transcripts", "rows", "pcm", "media"].map((table) => [table, [id]]) : null;
    });
  }

  usage() {
    return this.#database.usage();
  }

  persist() {
    return this.#database.persist();
  }

  // -- events ---------------------------------------------------------------------------------------------------------

  onchange(listener) {
    return added(this.#changes, listener);
  }

  onproblem(listener) {
    return added(this.#problems, listener);
  }

  #tell(change, rows) {
    this.#channel?.postMessage(change);
    for (const listener of this.#changes) listener({ ...change, rows, here: true });
  }

  #heard(message) {
    if (message.type === "transcript") this.#claims.watch(message.id);
    for (const listener of this.#changes) listener({ ...message, here: false });
  }

  #write(tables, work) {
    return this.attempt(() => this.#database.change(tables, work));
  }

  async attempt(work) {
    try {
      return await work();
    } catch (error) {
      this.#report(error.name === "QuotaExceededError" ? "storage_full" : "storage_failed");
      return false;
    }
  }

  #report(code) {
    for (const listener of this.#problems) listener(code);
  }

  /** The tab that worked on it has gone. */
  async #cut(id) {
    const transcript = await this.get(id);
    if (transcript?.state === "open") await this.update(id, { state: "cut" });
  }
}

export const store = new Store();

/** Other versions of the page, and other programs, may have written to the same database. */
function isWhole(transcript) {
  return STATES.has(transcript?.state) && typeof transcript.title === "string" && Number.isFinite(transcript.createdAt);
}

/** Pages that are not secure have no `crypto.randomUUID`. */
function freshId() {
  return crypto.randomUUID?.() ?? Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function added(listeners, listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
