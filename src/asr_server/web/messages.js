// The texts of errors.

// Texts for codes of the server (docs/errors.md) that replace the server's own messages.
export const SERVER_CODES = {
  file_too_large: "The file is too large for this server.",
  empty_file: "The file is empty.",
  invalid_audio: "This file has no sound that the server can read, or it is damaged.",
  no_audio_track: "This video has no sound.",
  audio_too_short: "The recording is too short to hold a word.",
  rate_limit_exceeded: "The server is busy. Try again in a moment.",
  deadline_exceeded: "The server was too busy to finish in time. Try again, or send a shorter recording.",
  shutting_down: "The server is shutting down.",
  engine_out_of_memory: "The server ran out of memory on this recording. Try again in a moment.",
  transcription_failed: "The model failed on this recording.",
  internal_error: "The server failed; its log has the details.",
  session_not_found: "The server had closed this session, so a new one begins.",
  session_taken: "This session was continued in another window.",
  slow_reader: "The connection was too slow.",
};

// Codes whose server message adds a number or a remedy. The messages of the others would only repeat the text.
const WITH_DETAIL = new Set(["file_too_large", "audio_too_short", "rate_limit_exceeded", "deadline_exceeded", "engine_out_of_memory"]);

// Errors that the page itself detects.
export const PAGE_CODES = {
  unreachable: "The server cannot be reached. Is it running, and is this device online?",
  unauthorized: "The API key is missing or wrong. Enter it under “Key”.",
  insecure: "Browsers allow the microphone only on a secure page: open this one over https://, or on the server's own machine as localhost.",
  microphone_refused: "The microphone was refused. Allow it for this page in the browser's settings, then start again.",
  microphone_missing: "No microphone was found. Connect one, then start again.",
  microphone_busy: "The microphone cannot be used now. Another program may hold it.",
  microphone_gone: "The microphone was disconnected, so the recording has stopped.",
  cut: "The connection broke before the end.",
  upload_cut: "The server ended the upload. The file may be larger than it takes.",
  file_gone: "The file cannot be read. It was changed or removed, or is a folder: choose it again.",
  one_at_a_time: "One recording at a time: the first one was taken.",
  no_speech: "No speech was found in this recording.",
  unplayable: "This browser cannot play the file. The text and its times are not affected.",
};

/** An error with a `code` and a text. */
export class Problem extends Error {
  constructor(code, serverMessage = "") {
    super(SERVER_CODES[code] ?? PAGE_CODES[code] ?? (serverMessage || PAGE_CODES.cut));
    this.code = code;
    this.detail = WITH_DETAIL.has(code) ? serverMessage : "";
  }

  /** The error of an HTTP status and body, which is the server's envelope or a proxy's own text. */
  static ofAnswer(status, body) {
    if (status === 401) return new Problem("unauthorized");
    try {
      const { code, message } = JSON.parse(body).error;
      return new Problem(code ?? "internal_error", message);
    } catch {
      const code = status === 413 ? "file_too_large" : status >= 502 ? "unreachable" : "internal_error";
      return new Problem(code);
    }
  }

  /** Both sentences. */
  get text() {
    return [this.message, this.detail].filter(Boolean).join(" ");
  }
}
