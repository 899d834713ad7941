"""Text to audio on an accelerator or in a child process: the contract, its client and the engines."""
