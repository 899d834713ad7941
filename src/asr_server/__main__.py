"""`python -m asr_server`: the same as the `asr-server` command."""

import sys

from asr_server.cli.main import main

sys.exit(main())
