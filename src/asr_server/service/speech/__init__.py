"""Text to speech: requests, sentence by sentence to audio files and streams, and answers that are kept."""
