/** Every operation by the client that @hey-api/openapi-ts made; `generated.py` says what is written. */
import { openAsBlob, writeFileSync } from "node:fs";
import { createClient } from "./made/client/index.js";
import * as made from "./made/sdk.gen.js";

const [recording, server, key, text, consent] = process.argv.slice(2);
const client = createClient({ baseUrl: server, auth: key });
const file = new File([await openAsBlob(recording)], "recording.wav", { type: "audio/wav" });
const answers: Record<string, unknown> = {};

type Found<Answer> = { data?: Answer; error?: unknown; response?: Response };

/** Note the answer of an operation, or the error, under its name, and return the answer. */
async function call<Answer>(name: string, asked: Promise<Found<Answer>>): Promise<NonNullable<Answer>> {
  const { data, error, response } = await asked;
  let answer: unknown = data ?? error;
  if (answer instanceof Blob) {
    const bytes = Buffer.from(await answer.arrayBuffer());
    answer = { bytes: bytes.length, begin: bytes.subarray(0, 4).toString("latin1") };
  }
  answers[name] = { status: response?.status, answer };
  return data as NonNullable<Answer>;
}

/** Note the events of an operation under its name, as `call` does with an answer. */
async function read(name: string, asked: Promise<{ stream: AsyncGenerator<unknown> }>): Promise<void> {
  const events: unknown[] = [];
  for await (const event of (await asked).stream) events.push(event);
  answers[name] = { status: 200, answer: JSON.stringify(events) };
}

await call("health", made.health({ client }));
await call("livez", made.livez({ client }));
await call("readyz", made.readyz({ client }));
await call("metrics", made.metrics({ client }));
await call("list_voices", made.listVoices({ client }));
await call("create_client_secret", made.createClientSecret({ client, body: {} }));
const listed = await call("list_models", made.listModels({ client }));
await call("retrieve_model", made.retrieveModel({ client, path: { model_id: listed.data[0].id } }));

const verbose = {
  file,
  response_format: "verbose_json" as const,
  timestamp_granularities: ["word" as const, "segment" as const],
};
await call("create_transcription", made.createTranscription({ client, body: verbose }));
await call("json", made.createTranscription({ client, body: { file } }));
await read("stream_transcription", made.streamTranscription({ client, body: { file } }));
await call("create_subtitles", made.createSubtitles({ client, body: { file } }));
await call("create_alignment", made.createAlignment({ client, body: { file, text } }));
const german = { file, language: "de", response_format: "verbose_json" as const };
await call("create_translation", made.createTranslation({ client, body: german }));
await call("transcribe", made.transcribe({ client, body: { audio_file: file } }));
await call("detect_language", made.detectLanguage({ client, body: { audio_file: file } }));
const headers = { "Content-Type": "audio/wav" };
await call("listen", made.listen({ client, body: file, headers, query: { model: "nova-3", punctuate: true } }));
await call("translate_texts", made.translateTexts({ client, body: { texts: [text], target_language: "de" } }));
const segments = [{ start: 0, end: 1, text }];
await call("create_document", made.createDocument({ client, body: { segments } }));

const path = { job_id: (await call("create_job", made.createJob({ client, body: verbose }))).id };
await read("job_events", made.jobEvents({ client, path }));
await call("retrieve_job", made.retrieveJob({ client, path }));
await call("job_result", made.jobResult({ client, path }));
await call("cancel_job", made.cancelJob({ client, path }));
await call("delete_job", made.deleteJob({ client, path }));
const book = { input: text, response_format: "mp3" as const };
const made_of = { job_id: (await call("create_speech_job", made.createSpeechJob({ client, body: book }))).id };
await read("events of a text", made.jobEvents({ client, path: made_of }));
await call("audio of a text", made.jobResult({ client, path: made_of }));

const person = { name: "Anna", consent, files: [file] };
const voice = { speaker_id: (await call("create_speaker", made.createSpeaker({ client, body: person }))).id };
await call("list_speakers", made.listSpeakers({ client }));
await call("retrieve_speaker", made.retrieveSpeaker({ client, path: voice }));
await call("delete_speaker", made.deleteSpeaker({ client, path: voice }));

const said = { input: text, response_format: "wav" as const };
await call("create_speech", made.createSpeech({ client, body: said }));
await read("stream_speech", made.streamSpeech({ client, body: said }));
await call("stream_samples", made.streamSamples({ client, body: said, parseAs: "blob" }));
await call("speak_as", made.speakAs({ client, body: { ...said, file } }));

await call("unknown model", made.retrieveModel({ client, path: { model_id: "nobody" } }));
await call("unknown language", made.createTranscription({ client, body: { file, language: "klingon" } }));
const stranger = createClient({ baseUrl: server, auth: "none-of-them" });
await call("wrong key", made.listModels({ client: stranger }));
writeFileSync("answers.json", JSON.stringify(answers, null, 1));
