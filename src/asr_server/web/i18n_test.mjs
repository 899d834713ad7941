// The message files: every language says all that English says, with the same placeholders and its own plurals.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { LANGUAGES, i18n, t } from "./i18n.js";

const read = (code) => JSON.parse(readFileSync(new URL(`messages/${code}.json`, import.meta.url)));
const flat = (messages) =>
  new Map(Object.entries(messages).flatMap(([section, texts]) => Object.entries(texts).map(([name, text]) => [`${section}.${name}`, text])));
const forms = (message) => (typeof message === "string" ? [message] : Object.values(message));
const placeholders = (message) => [...new Set(forms(message).flatMap((text) => text.match(/{\w+}/g) ?? []))].sort();

const english = flat(read("en"));

for (const code of Object.keys(LANGUAGES)) {
  const messages = flat(read(code));

  test(`${code} has every message of English, and no other`, () => {
    assert.deepEqual([...messages.keys()], [...english.keys()]);
  });

  test(`${code} has the placeholders of English`, () => {
    for (const [key, message] of messages) assert.deepEqual(placeholders(message), placeholders(english.get(key)), key);
  });

  test(`${code} has a text for every count where English has two`, () => {
    const rules = new Intl.PluralRules(code);
    const counted = Array.from({ length: 1001 }, (_, count) => rules.select(count));
    const needed = [...new Set([...counted, "other"])].sort();
    for (const [key, message] of messages)
      assert.deepEqual(typeof message === "object" && Object.keys(message).sort(), typeof english.get(key) === "object" && needed, key);
  });

  test(`${code} has no empty text`, () => {
    for (const [key, message] of messages) assert.ok(forms(message).every((text) => text.trim() === text && text), key);
  });
}

test("placeholders are filled and numbers are written as the language writes them", () => {
  i18n.use("de", { files: { size: "{name}: {size}", found: { one: "{count} Datei", other: "{count} Dateien" } } });
  assert.equal(t("files.size", { name: "a{size}", size: 1234.5 }), "a{size}: 1.234,5");
  assert.deepEqual([1, 2].map((count) => t("files.found", { count })), ["1 Datei", "2 Dateien"]);
});

test("what is filled in keeps its own direction where the page runs from right to left", () => {
  i18n.use("ar", { files: { name: "الملف {name}" } });
  assert.equal(t("files.name", { name: "a (1).wav" }), "الملف \u2068a (1).wav\u2069");
});

test("a key without a message is shown", () => {
  i18n.use("ja", { shell: { close: "閉じる" } });
  assert.deepEqual(["shell.close", "shell.none", "none.close"].map((key) => t(key)), ["閉じる", "shell.none", "none.close"]);
});
