// Parses server-sent events from text that arrives in pieces.

export class EventParser {
  #rest = "";

  /** The JSON data of all events that are complete now. Comments and data that is no JSON are skipped. */
  push(text) {
    this.#rest += text;
    const blocks = this.#rest.split(/\r?\n\r?\n/);
    this.#rest = blocks.pop();
    return blocks.flatMap(content);
  }
}

function content(block) {
  const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
  if (!lines.length) return [];
  try {
    return [JSON.parse(lines.map((line) => line.slice(5).trimStart()).join("\n"))];
  } catch {
    return []; // "[DONE]" of OpenAI's streams
  }
}
