// WAV files of 16 kHz mono 16-bit PCM.

export const RATE = 16_000;

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
