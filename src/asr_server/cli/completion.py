"""`asr-server completion`: the script for a shell. It calls `asr-server complete`, which knows all arguments."""

from __future__ import annotations

import argparse

_BASH = """\
_asr_server() {
    local IFS=$'\\n'
    COMPREPLY=($("${COMP_WORDS[0]}" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _asr_server asr-server
"""
_ZSH = """\
#compdef asr-server
_asr_server() {
    local -a found
    found=("${(@f)$("${words[1]}" complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -a found; else _files; fi
}
compdef _asr_server asr-server
"""
_FISH = """\
function __asr_server_complete
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    $before[1] complete -- $before[2..-1] "$current" 2>/dev/null
end
complete -c asr-server -a '(__asr_server_complete)'
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
EXAMPLES = """\
examples:
  echo 'source <(asr-server completion bash)' >> ~/.bashrc
  echo 'source <(asr-server completion zsh)' >> ~/.zshrc        after compinit
  asr-server completion fish > ~/.config/fish/completions/asr-server.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.epilog = EXAMPLES
    parser.add_argument("shell", choices=list(_SCRIPTS), metavar="SHELL", help=", ".join(_SCRIPTS))
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    print(_SCRIPTS[parsed.shell], end="")
    return 0
