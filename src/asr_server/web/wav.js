// WAV files of 16 kHz mono 16-bit PCM.

export const RATE = 16_000;
const HEAD_BYTES = 64 * 1024; // in which the samples must begin

/** The 44 bytes before the samples. */
export function wavHead(dataBytes) {
  const head = new DataView(new ArrayBuffer(44));
  const ascii = (at, text) => [...text].forEach((character, i) => head.setUint8(at + i, character.charCodeAt(0)));
  ascii(0, "RIFF");
  head.setUint32(4, 36 + dataBytes, true);
  ascii(8, "WAVEfmt ");
  head.setUint32(16, 16, true);
  head.setUint16(20, 1, true);
  head.setUint16(22, 1, true);
  head.setUint32(24, RATE, true);
  head.setUint32(28, 2 * RATE, true);
  head.setUint16(32, 2, true);
  head.setUint16(34, 16, true);
  ascii(36, "data");
  head.setUint32(40, dataBytes, true);
  return head;
}

/** Where the samples of a WAV file of 16-bit PCM lie: {at, bytes, channels, rate}; null if it is no such file. */
export async function pcmOf(blob) {
  const head = new DataView(await blob.slice(0, HEAD_BYTES).arrayBuffer());
  const name = (at) => String.fromCharCode(...[0, 1, 2, 3].map((i) => head.getUint8(at + i)));
  if (head.byteLength < 44 || name(0) !== "RIFF" || name(8) !== "WAVE") return null;
  let format = null;
  for (let at = 12; at + 8 <= head.byteLength; ) {
    const bytes = head.getUint32(at + 4, true);
    if (name(at) === "data") return format && { at: at + 8, bytes: whole(Math.min(bytes, blob.size - at - 8)), ...format };
    if (name(at) === "fmt " && at + 24 <= head.byteLength) {
      if (head.getUint16(at + 8, true) !== 1 || head.getUint16(at + 22, true) !== 16) return null;
      format = { channels: head.getUint16(at + 10, true), rate: head.getUint32(at + 12, true) };
    }
    at += 8 + bytes + (bytes % 2);
  }
  return null;
}

/** A recording that was cut off may end inside a sample. */
function whole(bytes) {
  return bytes - (bytes % 2);
}
