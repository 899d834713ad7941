// Live words by the server's own WebSocket: node native_live.mjs recording.wav [SERVER] [KEY]
// Node 22 and later have a WebSocket; before, `npm install ws`. The recording, 16-bit mono WAV with a plain header of
// 44 bytes, stands for a microphone.

import { readFileSync } from "node:fs";

const [recording, server = "http://127.0.0.1:8100", key = ""] = process.argv.slice(2);
const Socket = globalThis.WebSocket ?? (await import("ws")).WebSocket;

const file = readFileSync(recording);
const asked = new URLSearchParams({ sample_rate: String(file.readUInt32LE(24)), language: "en" });
if (key) asked.set("token", key);
const socket = new Socket(`${server.replace("http", "ws")}/ws/transcribe?${asked}`);

socket.onopen = () => {
  for (let at = 44; at < file.length; at += 3200) socket.send(file.subarray(at, at + 3200));
  socket.send(JSON.stringify({ action: "flush" }));
};
socket.onmessage = ({ data }) => {
  const message = JSON.parse(data);
  if (message.error) {
    console.error(message.error.message);
    process.exitCode = 1;
    socket.close();
  } else if (message.is_partial) {
    console.log(`... ${message.committed} (${message.tentative.trim()})`);
  } else if (message.is_final) {
    console.log(message.text);
    if (message.ending === "flush") socket.close();
  }
};
socket.onerror = () => {
  console.error(`No server answers at ${server}.`);
  process.exitCode = 1;
};
