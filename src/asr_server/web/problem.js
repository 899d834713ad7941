// Errors with a code and a text: the server's (docs/use/errors.md) and the page's own.
//
// new Problem(code, serverMessage)  its text is the message errors.CODE, else the server's
// Problem.ofAnswer(status, body)    the error of an HTTP answer
// problem.text                      what to show
// problem.said                      the server's message, with which the same problem can be made again

import { known, t } from "./i18n.js";

// Codes whose server message adds a number or a remedy. The messages of the others would only repeat the text.
const WITH_DETAIL = new Set(["file_too_large", "audio_too_short", "rate_limit_exceeded", "deadline_exceeded", "engine_out_of_memory", "speech_unavailable"]);

export class Problem extends Error {
  constructor(code, serverMessage = "") {
    super(known(`errors.${code}`) ? t(`errors.${code}`) : serverMessage || t("errors.cut"));
    this.code = code;
    this.said = serverMessage;
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
