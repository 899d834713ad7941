// The Transcripts panel: the list of what this browser has stored. Nothing is stored yet.

export {};
