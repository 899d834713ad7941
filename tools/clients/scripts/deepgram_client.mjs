// Deepgram's SDK for JavaScript: a recording, and live audio.
import { createReadStream, readFileSync } from "node:fs";

import { DeepgramClient } from "@deepgram/sdk";

const [recording, server] = process.argv.slice(2);
const HEADER_BYTES = 44;
const BLOCK_BYTES = 3_200;
const live = server.replace("http", "ws");
const environment = { base: server, production: live, agent: live, agentRest: server };
const { listen } = new DeepgramClient({ apiKey: "none", environment });

const answer = await listen.v1.media.transcribeFile(createReadStream(recording), { model: "nova-3" });
console.log(`# file\n${answer.results.channels[0].alternatives[0].transcript}`);

const options = { model: "nova-3", encoding: "linear16", sample_rate: 16_000, endpointing: "false" };
const session = await listen.v1.connect(options);
const finals = [];
session.on("message", (message) => {
  if (message.type === "Results" && message.is_final) finals.push(message.channel.alternatives[0].transcript);
});
const closed = new Promise((resolve) => session.on("close", resolve));
session.connect();
await session.waitForOpen();
const samples = readFileSync(recording).subarray(HEADER_BYTES);
for (let at = 0; at < samples.length; at += BLOCK_BYTES) session.sendMedia(samples.subarray(at, at + BLOCK_BYTES));
session.sendCloseStream({ type: "CloseStream" });
await closed;
console.log(`# live\n${finals.join(" ")}`);
process.exit(); // the session would connect again
