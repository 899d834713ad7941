"""The recipe of the demo aligner: the demo encoder and language model, taught to say when each word is spoken."""
