// A recording to text, whole and as it is decoded: node openai_file.mjs recording.wav [SERVER] [KEY]
// Needs `npm install openai`.

import { createReadStream } from "node:fs";
import OpenAI from "openai";

const [recording, server = "http://127.0.0.1:8100", key = "none"] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${server}/v1`, apiKey: key });

const whole = await client.audio.transcriptions.create({ file: createReadStream(recording), model: "whisper-1" });
console.log(whole.text);

const events = await client.audio.transcriptions.create({
  file: createReadStream(recording),
  model: "whisper-1",
  stream: true,
});
for await (const event of events) {
  if (event.type === "transcript.text.delta") process.stdout.write(event.delta);
}
process.stdout.write("\n");
