// The sound of an MP4 or MOV file (ISO 14496-12): its sound tracks with all tables, and new places of their chunks.
//
// The new file has the parts ftyp, mdat, moov. The picture's track keeps its first sample, since times count from the
// first track's beginning.

const MOST_MOOV_BYTES = 64 * 1024 * 1024;
const MOST_BOXES = 10_000; // at the top of a file
const MOST_CHUNKS = 500_000;
const CONTAINERS = new Set(["moov", "trak", "mdia", "minf", "stbl"]);
// Of these tables a track with one sample needs none.
const PER_SAMPLE = new Set(["stts", "stsc", "stsz", "stz2", "stco", "co64", "stss", "ctts", "sdtp", "sbgp", "sgpd", "cslg", "saiz", "saio", "stps"]);

/** A Blob of parts of `file`, or null where the file is of another form. */
export async function mp4Sound(file, signal) {
  const top = await boxesOfFile(file, signal);
  const found = top?.find(({ type }) => type === "moov");
  if (!found || found.size > MOST_MOOV_BYTES || top.some(({ type }) => type === "moof")) return null;
  const moov = parsed(new Uint8Array(await file.slice(found.at, found.at + found.size).arrayBuffer()));
  const tracks = moov.children.filter(({ type }) => type === "trak");
  const sounds = tracks.filter((track) => handler(track) === "soun");
  const picture = tracks.find((track) => handler(track) === "vide");
  if (!sounds.length || !picture) return null;

  const ftyp = top.find(({ type }) => type === "ftyp");
  const head = ftyp ? [file.slice(ftyp.at, ftyp.at + ftyp.size)] : [];
  const begin = (ftyp?.size ?? 0) + 16;
  const copied = new Copied(file, begin);
  for (const sound of sounds) {
    const chunks = chunksOf(sound);
    if (!chunks) return null;
    move(sound, chunks.map(({ at, size }) => copied.add(at, size)));
  }
  const first = chunksOf(picture, 1)?.[0];
  if (first) keepFirst(picture, copied.add(first.at, first.firstSize), first.firstSize);
  const kept = moov.children.filter((box) => box.type !== "trak" || sounds.includes(box) || (first && box === picture));
  const body = bytesOf({ ...moov, children: kept });
  return new Blob([...head, mdatHead(copied.size), ...copied.parts(), body], { type: "video/mp4" });
}

/** Ranges of the file, one behind the other in the new one. */
class Copied {
  #file;
  #begin;
  #ranges = [];
  size = 0;

  constructor(file, begin) {
    this.#file = file;
    this.#begin = begin;
  }

  /** The place of a range in the new file. */
  add(at, size) {
    if (at + size > this.#file.size) throw new Error("the file breaks off");
    const last = this.#ranges.at(-1);
    if (last && last.to === at) last.to += size;
    else this.#ranges.push({ from: at, to: at + size });
    this.size += size;
    return this.#begin + this.size - size;
  }

  parts() {
    return this.#ranges.map(({ from, to }) => this.#file.slice(from, to));
  }
}

async function boxesOfFile(file, signal) {
  const found = [];
  for (let at = 0; at < file.size; ) {
    signal?.throwIfAborted();
    const head = new DataView(await file.slice(at, at + 16).arrayBuffer());
    if (head.byteLength < 8 || found.length === MOST_BOXES) return null;
    let size = head.getUint32(0);
    if (size === 1 && head.byteLength === 16) size = Number(head.getBigUint64(8));
    else if (size === 0) size = file.size - at;
    if (size < 8) return null;
    found.push({ type: typeOf(head, 4), at, size });
    at += size;
  }
  return found;
}

function typeOf(view, at) {
  return String.fromCharCode(...[0, 1, 2, 3].map((i) => view.getUint8(at + i)));
}

/** A box of `bytes`: {type, children} for those that are looked into, {type, bytes} with their head for all others. */
function parsed(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const type = typeOf(view, 4);
  if (!CONTAINERS.has(type) || view.getUint32(0) === 1) return { type, bytes };
  const children = [];
  for (let at = 8; at + 8 <= bytes.length; ) {
    const size = view.getUint32(at);
    if (size < 8 || at + size > bytes.length) throw new Error("damaged box");
    children.push(parsed(bytes.subarray(at, at + size)));
    at += size;
  }
  return { type, children };
}

function bytesOf(box) {
  if (box.bytes) return box.bytes;
  const parts = box.children.map(bytesOf);
  const bytes = new Uint8Array(8 + parts.reduce((sum, part) => sum + part.length, 0));
  new DataView(bytes.buffer).setUint32(0, bytes.length);
  bytes.set([...box.type].map((character) => character.charCodeAt(0)), 4);
  parts.reduce((at, part) => (bytes.set(part, at), at + part.length), 8);
  return bytes;
}

function inside(box, ...path) {
  return path.reduce((found, type) => found?.children?.find((child) => child.type === type), box);
}

function handler(track) {
  const bytes = inside(track, "mdia", "hdlr")?.bytes;
  return bytes?.length >= 20 ? String.fromCharCode(...bytes.subarray(16, 20)) : "";
}

function table(track, type) {
  const bytes = inside(track, "mdia", "minf", "stbl", type)?.bytes;
  return bytes && new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** The chunks of a track, at most `most`: [{at, size, firstSize}] in bytes of the file; null for damaged tables. */
function chunksOf(track, most = MOST_CHUNKS) {
  const [wide, narrow, runs, sizes] = ["co64", "stco", "stsc", "stsz"].map((type) => table(track, type));
  const places = wide ?? narrow;
  if (!places || !runs || !sizes) return null;
  const count = places.getUint32(12);
  if (count === 0 || (count > most && most !== 1)) return null;
  const same = sizes.getUint32(12);
  if (same === 1) return null; // QuickTime's PCM, whose sample is not what its table says
  const samples = sizes.getUint32(16);
  const found = [];
  let [run, sample] = [0, 0];
  for (let chunk = 0; chunk < Math.min(count, most); chunk++) {
    while (run + 1 < runs.getUint32(12) && runs.getUint32(16 + 12 * (run + 1)) <= chunk + 1) run++;
    const inChunk = Math.min(runs.getUint32(16 + 12 * run + 4), samples - sample);
    let size = same * inChunk;
    if (!same) for (let i = 0; i < inChunk; i++) size += sizes.getUint32(20 + 4 * (sample + i));
    const at = wide ? Number(wide.getBigUint64(16 + 8 * chunk)) : narrow.getUint32(16 + 4 * chunk);
    found.push({ at, size, firstSize: same || sizes.getUint32(20 + 4 * sample) });
    sample += inChunk;
  }
  return found;
}

/** Give the chunks of a track their new places. */
function move(track, places) {
  const tables = inside(track, "mdia", "minf", "stbl");
  const box = new DataView(new ArrayBuffer(16 + 8 * places.length));
  box.setUint32(12, places.length);
  places.forEach((place, i) => box.setBigUint64(16 + 8 * i, BigInt(place)));
  const others = tables.children.filter(({ type }) => type !== "stco" && type !== "co64");
  tables.children = [...others, full("co64", box)];
}

/** Leave a track its first sample, which lies at `place`. */
function keepFirst(track, place, size) {
  const tables = inside(track, "mdia", "minf", "stbl");
  const [durations, shifts] = ["stts", "ctts"].map((type) => table(track, type));
  const kept = tables.children.filter(({ type }) => !PER_SAMPLE.has(type));
  const made = [
    numbers("stts", [1, 1, durations?.getUint32(20) ?? 1]),
    numbers("stsc", [1, 1, 1, 1]),
    numbers("stsz", [0, 1, size]),
  ];
  if (shifts) made.push(numbers("ctts", [1, 1, shifts.getUint32(20)], shifts.getUint32(8)));
  tables.children = [...kept, ...made];
  move(track, [place]);
}

function numbers(type, values, version = 0) {
  const box = new DataView(new ArrayBuffer(12 + 4 * values.length));
  box.setUint32(8, version);
  values.forEach((value, i) => box.setUint32(12 + 4 * i, value));
  return full(type, box);
}

function full(type, view) {
  const bytes = new Uint8Array(view.buffer);
  view.setUint32(0, bytes.length);
  bytes.set([...type].map((character) => character.charCodeAt(0)), 4);
  return { type, bytes };
}

function mdatHead(size) {
  const head = new DataView(new ArrayBuffer(16));
  head.setUint32(0, 1);
  [..."mdat"].forEach((character, i) => head.setUint8(4 + i, character.charCodeAt(0)));
  head.setBigUint64(8, BigInt(16 + size));
  return head;
}
