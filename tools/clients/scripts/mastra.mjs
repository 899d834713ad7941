/** Mastra's voice for OpenAI: the base URL in the variable OPENAI_BASE_URL. */
import { createReadStream } from "node:fs";

const [recording, server] = process.argv.slice(2);
process.env.OPENAI_BASE_URL = `${server}/v1`;
process.env.OPENAI_API_KEY = "none";
const { OpenAIVoice } = await import("@mastra/voice-openai");

const voice = new OpenAIVoice();
console.log(`# file\n${await voice.listen(createReadStream(recording), { filetype: "wav" })}`);
const spoken = await voice.speak("Turn on the lights.", { speaker: "alloy", responseFormat: "wav" });
let size = 0;
for await (const block of spoken) size += block.length;
if (size < 10_000) throw new Error(`${size} bytes of speech`);
