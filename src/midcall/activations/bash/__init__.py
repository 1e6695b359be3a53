"""bash: a shell for models. Commands are judged by rules, asked about, and run in a sandbox.

What runs without a question runs where nothing can be written and nothing reached, so that a mistake of the
judge does no lasting harm.

parse.py      what a command line does, as far as that can be read from it, and its words
wrappers.py   what is behind `env`, `xargs`, `find -exec`, `bash -c` and the like
rules.py      rules and settings, from TOML; rules.toml has those that come with midcall
judge.py      the plan of a command, each part with a verdict
questions.py  what a person is asked, and what the answers mean
sandbox.py    what a command can reach
launcher.py   the process between the server and a command; inner.py is the one inside of bubblewrap
run.py        one command, from its start to its end
"""

from midcall.activations.bash.activation import Bash

__all__ = ["Bash"]
