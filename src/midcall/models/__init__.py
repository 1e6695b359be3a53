"""Models: language models behind one protocol, whoever runs them (see `base.Model`).

`choose_model` finds one by its name, as `midcall serve --model NAME` gives it.
"""

from midcall.models.base import (
    Attachment,
    Message,
    Model,
    ModelError,
    ModelEvent,
    ModelRequest,
    Stopped,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolDefinition,
    Usage,
    choose_model,
)

__all__ = [
    "Attachment",
    "Message",
    "Model",
    "ModelError",
    "ModelEvent",
    "ModelRequest",
    "Stopped",
    "TextPart",
    "ThinkingPart",
    "ToolCall",
    "ToolDefinition",
    "Usage",
    "choose_model",
]
