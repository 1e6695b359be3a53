"""claudecode: Claude Code as a tool that asks through midcall.

activation.py   the methods, and a chat from its query to its last event
background.py   chats that are polled
sessions.py     what is kept of a session, and who runs it
transcripts.py  what was said in it, as a tree
turn.py         a turn in chunks, each of which is a step
run.py          one run of Claude Code, which ends with a question or with the turn
process.py      how Claude Code is started
supervisor.py   the process between the server and Claude Code, which leaves none behind
permission.py   what a person is asked
hub_tools.py    the hub's methods, as tools of Claude Code
events.py       what a chat tells
"""

from midcall.activations.claudecode.activation import ClaudeCode

__all__ = ["ClaudeCode"]
