/** OpenAI's Agents SDK for JavaScript: the transcripts of a session of its realtime transport. */
import { readFileSync } from "node:fs";
import { OpenAIRealtimeWebSocket } from "@openai/agents/realtime";

const [recording, server] = process.argv.slice(2);
const transport = new OpenAIRealtimeWebSocket({ url: `${server.replace("http", "ws")}/v1/realtime?model=gpt-realtime` });
const found = new Promise((resolve, reject) => {
  transport.on("*", (event) => {
    if (event.type === "conversation.item.input_audio_transcription.completed") resolve(event.transcript);
    if (event.type === "error") reject(new Error(JSON.stringify(event)));
  });
  transport.on("error", reject);
});
// The pauses of the recording are shorter: it is one turn.
const turnDetection = { type: "server_vad", silenceDurationMs: 1500 };
const transcription = { model: "gpt-4o-transcribe", language: "en" };
const input = { format: { type: "audio/pcm", rate: 24000 }, transcription, turnDetection };
await transport.connect({ apiKey: "none", initialSessionConfig: { audio: { input } } });

const header = 44;
const narrow = new Int16Array(readFileSync(recording).buffer.slice(header));
// Three samples for each two of the recording, which has 16 kHz, and four seconds of silence.
const wide = new Int16Array(Math.floor(narrow.length / 2) * 3 + 4 * 24000);
for (let at = 0; at * 2 + 2 < narrow.length; at++) {
  const [first, second, third] = narrow.subarray(2 * at, 2 * at + 3);
  wide.set([first, (first + 2 * second) / 3, (2 * second + third) / 3], 3 * at);
}
const block = 2400;
for (let at = 0; at < wide.length; at += block) {
  transport.sendAudio(wide.slice(at, at + block).buffer);
  await new Promise((resolve) => setTimeout(resolve, 100));
}
console.log(`# realtime\n${await found}`);
transport.close();
