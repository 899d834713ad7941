"""Pure functions of text: languages, words in every script, sentences, joining."""
