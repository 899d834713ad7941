// The sound of a Matroska or WebM file (RFC 9559): its clusters with only the blocks of the sound tracks.
//
// Of every other track the first block is kept, since times count from the first block of the file. The index is left out.

const IDS = {
  head: 0x1a45dfa3,
  segment: 0x18538067,
  info: 0x1549a966,
  tracks: 0x1654ae6b,
  cluster: 0x1f43b675,
  track: 0xae,
  number: 0xd7,
  kind: 0x83,
  time: 0xe7,
  block: 0xa3,
  group: 0xa0,
  inner: 0xa1,
};
const SOUND = 2; // the kind of a track
const WINDOW_BYTES = 4 * 1024 * 1024; // read at a time
const MOST_BYTES = 512 * 1024 * 1024; // of sound: it is copied into memory
const MOST_HEADER_BYTES = 16 * 1024 * 1024;
// An element of the file's upper level ends a cluster without a size.
const UPPER = new Set([0x114d9b74, 0x1c53bb6b, 0x1941a469, 0x1043a770, 0x1254c367, IDS.info, IDS.tracks, IDS.cluster, IDS.segment]);

/** A Blob with the sound, or null where the file is of another form. */
export async function matroskaSound(file, signal) {
  const reader = new Reader(file, signal);
  const head = await reader.element(0);
  if (head?.id !== IDS.head) return null;
  const segment = await reader.element(head.end);
  if (segment?.id !== IDS.segment) return null;
  const made = new Made(await reader.bytes(0, head.end));
  let tracks = null;
  for (let at = segment.body; at < Math.min(segment.end, file.size); ) {
    const element = await reader.element(at);
    if (!element) break; // the file breaks off
    if (element.id === IDS.info || element.id === IDS.tracks) {
      if (element.end - at > MOST_HEADER_BYTES) return null;
      const bytes = await reader.bytes(at, element.end);
      made.add(bytes);
      if (element.id === IDS.tracks) tracks = tracksOf(bytes.subarray(element.body - at));
      if (tracks && !(tracks.sounds.size && tracks.others.size)) return null;
    }
    if (element.id === IDS.cluster) {
      if (!tracks) return null;
      at = await copyCluster(reader, element, tracks, made);
    } else at = element.end;
    if (made.size > MOST_BYTES) return null;
  }
  return tracks ? made.blob() : null;
}

/** Copies the cluster and returns where the next element begins. */
async function copyCluster(reader, cluster, tracks, made) {
  const parts = [];
  let at = cluster.body;
  for (const end = Math.min(cluster.end, reader.size); at < end; ) {
    const element = await reader.element(at);
    if (!element || (cluster.end === Infinity && UPPER.has(element.id))) break;
    if (element.end > reader.size) return reader.size; // the file breaks off inside it
    if (element.id === IDS.time) parts.push(await reader.bytes(at, element.end));
    if (element.id === IDS.block || element.id === IDS.group) {
      const body = element.id === IDS.block ? element.body : await innerBlock(reader, element);
      const number = body === null ? null : (await reader.vint(body))?.value;
      // `delete` tells whether this is the first block of another track.
      if (tracks.sounds.has(number) || tracks.others.delete(number)) parts.push(await reader.bytes(at, element.end));
    }
    at = element.end;
  }
  made.cluster(parts);
  return at;
}

async function innerBlock(reader, group) {
  for (let at = group.body; at < group.end; ) {
    const element = await reader.element(at);
    if (!element) return null;
    if (element.id === IDS.inner) return element.body;
    at = element.end;
  }
  return null;
}

/** {sounds: numbers of the sound tracks, others: numbers of the other tracks}. */
function tracksOf(bytes) {
  const [sounds, others] = [new Set(), new Set()];
  for (const track of elements(bytes)) {
    if (track.id !== IDS.track) continue;
    const fields = Object.fromEntries(elements(track.body).map(({ id, body }) => [id, body.reduce((sum, byte) => sum * 256 + byte, 0)]));
    (fields[IDS.kind] === SOUND ? sounds : others).add(fields[IDS.number]);
  }
  return { sounds, others };
}

function elements(bytes) {
  const found = [];
  for (let at = 0; at < bytes.length; ) {
    const id = vint(bytes, at, true);
    const size = id && vint(bytes, at + id.length, false);
    if (!size) break;
    const body = at + id.length + size.length;
    found.push({ id: id.value, body: bytes.subarray(body, body + size.value) });
    at = body + size.value;
  }
  return found;
}

/** A number of variable length (RFC 8794): {value, length}; Infinity for an unknown size, null where it breaks off. */
function vint(bytes, at, isId) {
  const length = Math.clz32(bytes[at]) - 23;
  if (!bytes[at] || at + length > bytes.length) return null;
  let value = isId ? bytes[at] : bytes[at] & (0xff >> length);
  let ones = value === 0xff >> length;
  for (let i = 1; i < length; i++) {
    value = value * 256 + bytes[at + i];
    ones &&= bytes[at + i] === 0xff;
  }
  return { value: ones && !isId ? Infinity : value, length };
}

/** Reads the file in windows. */
class Reader {
  #file;
  #signal;
  #from = 0;
  #window = new Uint8Array(0);

  constructor(file, signal) {
    this.#file = file;
    this.#signal = signal;
    this.size = file.size;
  }

  async bytes(from, to) {
    if (from >= this.#from && to <= this.#from + this.#window.length) return this.#window.slice(from - this.#from, to - this.#from);
    this.#signal?.throwIfAborted();
    const until = Math.min(this.size, Math.max(to, from + WINDOW_BYTES));
    this.#window = new Uint8Array(await this.#file.slice(from, until).arrayBuffer());
    this.#from = from;
    return this.#window.slice(0, to - from);
  }

  async vint(at) {
    return vint(await this.bytes(at, Math.min(at + 8, this.size)), 0, false);
  }

  /** The element at a place: {id, body, end}; null where the file breaks off. */
  async element(at) {
    const head = await this.bytes(at, Math.min(at + 12, this.size));
    const id = vint(head, 0, true);
    const size = id && vint(head, id.length, false);
    if (!size) return null;
    const body = at + id.length + size.length;
    return { id: id.value, body, end: body + size.value };
  }
}

/** The new file. */
class Made {
  #parts;
  size = 0;

  constructor(head) {
    this.#parts = [head, new Uint8Array([0x18, 0x53, 0x80, 0x67, 0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff])];
  }

  add(...parts) {
    // A Blob may lie on the disk, while arrays do not.
    const part = new Blob(parts);
    this.#parts.push(part);
    this.size += part.size;
  }

  cluster(parts) {
    const head = new DataView(new ArrayBuffer(12));
    head.setUint32(0, IDS.cluster);
    head.setBigUint64(4, BigInt(parts.reduce((sum, part) => sum + part.length, 0)));
    head.setUint8(4, 0x01);
    this.add(new Uint8Array(head.buffer), ...parts);
  }

  blob() {
    return new Blob(this.#parts, { type: "video/x-matroska" });
  }
}
