/** Vercel's AI SDK: `@ai-sdk/openai` with a base URL. */
import { readFileSync, writeFileSync } from "node:fs";
import { createOpenAI } from "@ai-sdk/openai";
import { generateSpeech, transcribe } from "ai";

const [recording, server] = process.argv.slice(2);
const openai = createOpenAI({ baseURL: `${server}/v1`, apiKey: "none" });

const found = await transcribe({ model: openai.transcription("whisper-1"), audio: readFileSync(recording) });
console.log(`# file\n${found.text}`);
console.log(`# segments\n${found.segments.map((segment) => segment.text).join(" ")}`);
const newer = { model: openai.transcription("gpt-4o-transcribe"), audio: readFileSync(recording) };
newer.providerOptions = { openai: { language: "en" } };
console.log(`# language\n${(await transcribe(newer)).text}`);
const { audio } = await generateSpeech({
  model: openai.speech("tts-1"),
  text: found.text,
  voice: "alloy",
  outputFormat: "wav",
});
writeFileSync("spoken.wav", audio.uint8Array);
