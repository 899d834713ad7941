"""Timed texts to SRT and VTT, in integer milliseconds. Pure: strings and numbers in, strings out."""
