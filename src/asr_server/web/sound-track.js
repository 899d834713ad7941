// The sound of a video without its picture, so that less is uploaded. Nothing is decoded: packets are copied with their
// times, so the server hears the same samples at the same times.

import { mp4Sound } from "./sound-track-mp4.js";
import { matroskaSound } from "./sound-track-matroska.js";

const SMALL_BYTES = 20 * 1024 * 1024; // of less, the whole file is uploaded
const WORTH = 0.7; // share of the file's size, above which the sound alone is not worth it

/** A Blob with the sound tracks of a large video, or null: it is small, has no picture worth leaving out, or a form
 * that is not known here. Then the file is uploaded as it is. */
export async function soundTrack(file, { smallBytes = SMALL_BYTES, worth = WORTH, signal } = {}) {
  if (file.size < smallBytes) return null;
  const head = new Uint8Array(await file.slice(0, 12).arrayBuffer());
  const isMatroska = [0x1a, 0x45, 0xdf, 0xa3].every((byte, i) => head[i] === byte);
  const isMp4 = ["ftyp", "moov", "mdat", "wide", "free", "skip"].includes(String.fromCharCode(...head.slice(4, 8)));
  const extract = isMatroska ? matroskaSound : isMp4 ? mp4Sound : null;
  // What is damaged here may still be read by the server.
  const sound = extract && (await extract(file, signal).catch(() => null));
  return sound && sound.size < worth * file.size ? sound : null;
}
