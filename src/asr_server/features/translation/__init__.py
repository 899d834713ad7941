"""Translates lines of text through any OpenAI-compatible chat endpoint. No times and no file names are sent."""
