// Recordings that a reload, a closed tab or a crash has cut off.
//
// Most of such a recording is in the store. What the store had not taken when the page went away, at most the last half second
// or so, is written to the local storage at once and added to the store with the next visit.

import { LINE_STEP } from "./live-keeper.js";
import { BYTES_PER_SECOND } from "./resample.js";

const PREFIX = "live-tail ";
export const WAV_HEADER_BYTES = 44;
const CHUNK = 0x8000; // characters in one call: more arguments than that are too many

/** Keep a `tail()` of a recording, if there is any. Each recording has its own: several tabs may be closed together. */
export function keepTail(storage, tail) {
  if (tail) storage.setItem(PREFIX + tail.id, JSON.stringify({ ...tail, pcm: encoded(tail.pcm) }));
}

/** Add the kept tails to the store. What the store took in the end is not added twice. */
export async function restoreTails(store, storage) {
  for (const name of Object.keys(storage).filter((one) => one.startsWith(PREFIX))) {
    const tail = JSON.parse(storage.getItem(name) ?? "null");
    storage.removeItem(name); // before another tab restores it as well
    if (tail && (await store.get(tail.id))) await restore(store, tail);
  }
}

async function restore(store, { id, at, pcm, open, n }) {
  const had = await soundBytes(store, id);
  const sound = decoded(pcm);
  // Sound that the store refused leaves a hole before the tail, and what is behind it would have wrong times.
  if (at <= had && at + sound.length > had) await store.appendSound(id, new Blob([sound.subarray(had - at)]));
  const taken = (await store.rows(id)).some((row) => row.n > n);
  if (open?.text.trim() && !taken) await store.putRows(id, [{ n: n + 1, ...open, complete: false }]);
}

/** Whether a transcript is a recording that was cut off and may go on. */
export function mayGoOn({ kind, state, live }) {
  return kind === "live" && state === "cut" && live !== null;
}

/** The newest recording that was cut off and may go on, as `leftOf` gives it, or null. */
export async function interrupted(store) {
  for (const transcript of await store.list()) {
    if (!mayGoOn(transcript)) continue;
    const left = await leftOf(store, transcript);
    if (left.rows.length || left.soundBytes) return left;
    await store.remove(transcript.id); // it ended before its first second
  }
  return null;
}

/** What a recording that was cut off has left: {transcript, rows, lines, finalEnd, soundBytes, from}. `from` is where the
 * sound behind the last final begins. */
export async function leftOf(store, transcript) {
  const kept = await soundBytes(store, transcript.id);
  const { lines = 0, finalEnd = 0 } = transcript.live ?? {};
  const from = Math.min(kept, 2 * Math.floor((finalEnd * BYTES_PER_SECOND) / 2));
  return { transcript, rows: await store.rows(transcript.id), lines, finalEnd, soundBytes: kept, from };
}

/** Remove the rows of `found` that its sound will give again: those behind the last final. */
export async function dropUnfinished(store, found) {
  const again = found.rows.filter(({ n }) => n > found.lines * LINE_STEP).map(({ n }) => n);
  if (again.length) await store.changeRows(found.transcript.id, again, []);
}

async function soundBytes(store, id) {
  const sound = await store.sound(id);
  return sound ? sound.size - WAV_HEADER_BYTES : 0;
}

function encoded(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += CHUNK) text += String.fromCharCode(...bytes.subarray(at, at + CHUNK));
  return btoa(text);
}

function decoded(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}
