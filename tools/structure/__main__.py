"""`python -m tools.structure` prints the figures of the source beside the recorded ones and the aims."""

from tools.structure.ratchet import main

main()
