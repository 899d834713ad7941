// Hugging Face's client for JavaScript, which sends the recording itself as the body.
import { readFileSync } from "node:fs";

import { InferenceClient } from "@huggingface/inference";

const [recording, server] = process.argv.slice(2);
const client = new InferenceClient("none", { endpointUrl: `${server}/v1/audio/transcriptions` });
const data = new Blob([readFileSync(recording)], { type: "audio/wav" });
console.log(`# body\n${(await client.automaticSpeechRecognition({ data })).text}`);
