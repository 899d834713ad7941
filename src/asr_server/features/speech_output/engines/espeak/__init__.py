"""The speech engine `espeak`: eSpeak NG, small and offline, in child processes."""
