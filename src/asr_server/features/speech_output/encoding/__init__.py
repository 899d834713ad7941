"""Speech to files: samples to MP3, Opus, AAC, FLAC, WAV or PCM in a confined child process."""
