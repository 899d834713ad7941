"""Times of words, cues, SRT and WebVTT files. Pure; times are integer milliseconds."""
