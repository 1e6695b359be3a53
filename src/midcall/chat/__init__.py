"""Chat: people talk to a model in a page, and the hub's methods ask them there.

`ChatEngine` is the loop of model and tools; `Plugin` says how a method's questions are shown. The wires are
`ndjson` and `agui`, one small file each.
"""

from midcall.chat.engine import ChatEngine
from midcall.chat.plugins import Plugin, PluginContext, PluginQuestion, Reply, Retry, Sampling

__all__ = ["ChatEngine", "Plugin", "PluginContext", "PluginQuestion", "Reply", "Retry", "Sampling"]
