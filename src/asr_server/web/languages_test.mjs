import assert from "node:assert/strict";
import { test } from "node:test";

import { speechLanguages } from "./languages.js";

test("languages of speech have names, each once, the frequent ones apart", () => {
  const { frequent, rare } = speechLanguages(["af", "bpy", "cmn", "en", "en-gb", "fr", "qya", "x!", "zh"], "en");
  assert.deepEqual(frequent, [["zh", "Chinese"], ["en", "English"], ["fr", "French"]]);
  assert.deepEqual(rare, [["af", "Afrikaans"], ["bpy", "Bishnupriya"], ["en-gb", "British English"]]);
  assert.deepEqual(speechLanguages(["bg", "en"], "bg").frequent.map(([code]) => code), ["en", "bg"]);
});
