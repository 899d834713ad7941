"""Speech in other languages: the server in front of a small server of Whisper, with recordings of people."""
