/** Every operation by the client that OpenAPI Generator made for `fetch`; `generated.py` says what is written. */
import { openAsBlob, writeFileSync } from "node:fs";
import * as made from "./made/index.js";

const [recording, server, key, text, consent] = process.argv.slice(2);
const configuration = new made.Configuration({ basePath: server, accessToken: key });
const audio = new made.AudioApi(configuration);
const jobs = new made.JobsApi(configuration);
const models = new made.ModelsApi(configuration);
const operations = new made.OperationsApi(configuration);
const realtime = new made.RealtimeApi(configuration);
const speakers = new made.SpeakersApi(configuration);
const speech = new made.SpeechApi(configuration);
const texts = new made.TextApi(configuration);
const file = new File([await openAsBlob(recording)], "recording.wav");
const answers: Record<string, unknown> = {};

async function sizes(blob: Blob): Promise<unknown> {
  const bytes = Buffer.from(await blob.arrayBuffer());
  if (bytes[0] === "{".charCodeAt(0)) return JSON.parse(bytes.toString());
  return { bytes: bytes.length, begin: bytes.subarray(0, 4).toString("latin1") };
}

/** Note the answer of an operation, or the error, under its name, and return the answer. */
async function call<Answer>(name: string, asked: Promise<made.ApiResponse<Answer>>): Promise<Answer> {
  try {
    const response = await asked;
    const answer = await response.value();
    const noted = answer instanceof Blob ? await sizes(answer) : answer;
    answers[name] = { status: response.raw.status, answer: noted };
    return answer;
  } catch (fault) {
    if (!(fault instanceof made.ResponseError)) throw fault;
    const answer: made.ErrorBody = made.ErrorBodyFromJSON(await fault.response.json());
    answers[name] = { status: fault.response.status, answer };
    return undefined as Answer;
  }
}

await call("health", operations.healthRaw());
await call("livez", operations.livezRaw());
await call("readyz", operations.readyzRaw());
await call("metrics", operations.metricsRaw());
await call("list_voices", speech.listVoicesRaw());
await call("create_client_secret", realtime.createClientSecretRaw({ secretRequest: {} }));
const listed = await call("list_models", models.listModelsRaw());
await call("retrieve_model", models.retrieveModelRaw({ modelId: listed.data[0].id }));

const verbose = {
  file,
  responseFormat: made.CreateTranscriptionResponseFormatEnum.VerboseJson,
  timestampGranularities: [
    made.CreateTranscriptionTimestampGranularitiesEnum.Word,
    made.CreateTranscriptionTimestampGranularitiesEnum.Segment,
  ],
};
await call("create_transcription", audio.createTranscriptionRaw(verbose));
await call("json", audio.createTranscriptionRaw({ file }));
await call("stream_transcription", audio.streamTranscriptionRaw({ file }));
await call("create_subtitles", audio.createSubtitlesRaw({ file }));
await call("create_alignment", audio.createAlignmentRaw({ file, text }));
await call("create_translation", audio.createTranslationRaw({ file, language: "de", responseFormat: "verbose_json" }));
await call("transcribe", audio.transcribeRaw({ audioFile: file }));
await call("detect_language", audio.detectLanguageRaw({ audioFile: file }));
await call("listen", audio.listenRaw({ body: file, model: "nova-3", punctuate: true }));
const wanted = { texts: [text], targetLanguage: "de" };
await call("translate_texts", texts.translateTextsRaw({ textTranslationRequest: wanted }));
const segments = [{ start: 0, end: 1, text }];
await call("create_document", texts.createDocumentRaw({ documentRequest: { segments } }));

const jobId = (await call("create_job", jobs.createJobRaw(verbose))).id;
await call("job_events", jobs.jobEventsRaw({ jobId }));
await call("retrieve_job", jobs.retrieveJobRaw({ jobId }));
await call("job_result", jobs.jobResultRaw({ jobId }));
await call("cancel_job", jobs.cancelJobRaw({ jobId }));
await call("delete_job", jobs.deleteJobRaw({ jobId }));
const spoken = { speechJobBody: { input: text, responseFormat: "mp3" as const } };
const book = (await call("create_speech_job", jobs.createSpeechJobRaw(spoken))).id;
await call("events of a text", jobs.jobEventsRaw({ jobId: book }));
await call("audio of a text", jobs.jobResultRaw({ jobId: book }));

const voice = await call("create_speaker", speakers.createSpeakerRaw({ name: "Anna", consent, files: [file] }));
await call("list_speakers", speakers.listSpeakersRaw());
await call("retrieve_speaker", speakers.retrieveSpeakerRaw({ speakerId: voice.id }));
await call("delete_speaker", speakers.deleteSpeakerRaw({ speakerId: voice.id }));

const said = { speechRequest: { input: text, responseFormat: made.SpeechRequestResponseFormatEnum.Wav } };
await call("create_speech", speech.createSpeechRaw(said));
await call("stream_speech", speech.streamSpeechRaw(said));
await call("stream_samples", speech.streamSamplesRaw(said));
await call("speak_as", speech.speakAsRaw({ file, input: text, responseFormat: "wav" }));

await call("unknown model", models.retrieveModelRaw({ modelId: "nobody" }));
await call("unknown language", audio.createTranscriptionRaw({ file, language: "klingon" }));
const stranger = new made.ModelsApi(new made.Configuration({ basePath: server, accessToken: "none-of-them" }));
await call("wrong key", stranger.listModelsRaw());
writeFileSync("answers.json", JSON.stringify(answers, null, 1));
