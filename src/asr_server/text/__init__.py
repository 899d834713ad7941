"""Pure functions of text: languages, words in every script, joining, repetition."""
