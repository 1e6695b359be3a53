"""Pictures on their way to providers, and several models by name."""

import base64

import pytest

from midcall.models.anthropic import Anthropic
from midcall.models.base import Attachment, Message, ModelRequest, model_names, takes_images
from midcall.models.openai import OpenAI
from midcall.models.scripted import Scripted

DOT = Attachment("1", "dot.png", "image/png", 3, b"dot")
ENCODED = base64.b64encode(b"dot").decode()
REQUEST = ModelRequest((Message("user", "What is it?", files=(DOT,)),))


def test_pictures_are_sent_as_each_provider_wants_them() -> None:
    (said,) = OpenAI("m", base="http://127.0.0.1:9")._body(REQUEST)["messages"]
    assert said["content"] == [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ENCODED}"}},
        {"type": "text", "text": "What is it?"},
    ]
    (said,) = Anthropic("m", key="k", base="http://127.0.0.1:9")._body(REQUEST)["messages"]
    assert said["content"] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ENCODED}},
        {"type": "text", "text": "What is it?"},
    ]
    assert not takes_images(Scripted())


def test_several_models_are_named_with_commas_or_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDCALL_MODEL", "local, scripted")
    assert model_names() == ["local", "scripted"]
    assert model_names(["scripted", "ollama:a,ollama:b,scripted"]) == ["scripted", "ollama:a", "ollama:b"]
    monkeypatch.delenv("MIDCALL_MODEL")
    assert model_names() == []
