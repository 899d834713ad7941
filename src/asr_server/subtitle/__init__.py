"""Words in time: their times, cues made of them, SRT and VTT. Pure, in integer milliseconds: data in, data out."""
