"""Who comes back for a call needs the scopes of its method then: the same person may have several keys."""

import asyncio
import itertools
import json
from typing import Any

import pytest

from chatting import Keyed, Puppet, call, questions, serving
from driving import drive
from mcp_peers import META, MODERN
from midcall import Ask, Hub, connect_hub, method
from midcall.chat import ChatEngine
from midcall.errors import NotAllowed
from midcall.transports.auth import StaticKeys
from waiting_peers import TASKS

FULL, LESS = "the-key-of-ada-0123456", "a-lesser-key-of-ada-012"
KEYS = f"ada={FULL}:bank ada={LESS}"

_ids = itertools.count(1)


class Bank:
    """Pays."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    @method(scopes=["bank"])
    async def pay(self, ask: Ask) -> str:
        """Ask how much, and pay that."""
        self.paid.append(await ask.prompt("How much?", key="sum", timeout=None))
        return "paid"


async def rpc(person: Keyed, about: str, asked: str, **params: Any) -> dict[str, Any]:
    message = {
        "jsonrpc": "2.0",
        "id": next(_ids),
        "method": asked,
        "params": {**params, "_meta": TASKS | {f"{META}protocolVersion": MODERN}},
    }
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": asked,
        "Mcp-Name": about,
    }
    _, _, data = await person.request("POST", "/mcp", message, headers)
    answered: dict[str, Any] = json.loads(data)
    return answered


def test_tasks_are_for_keys_that_have_the_scopes_of_their_method() -> None:
    async def main() -> None:
        bank = Bank()
        engine = ChatEngine(Hub("h").register(bank), Puppet())
        async with serving(engine, auth=StaticKeys(KEYS)) as port:
            full, less = Keyed(port, FULL), Keyed(port, LESS)
            asked = (await rpc(full, "bank.pay", "tools/call", name="bank.pay", arguments={}))["result"]
            task = asked["_meta"]["dev.midcall/callId"]
            answers = {"sum": {"action": "accept", "content": {"text": "1000"}}}
            for method_, more in (
                ("tasks/get", {}),
                ("tasks/update", {"inputResponses": answers}),
                ("tasks/cancel", {}),
            ):
                refused = await rpc(less, task, method_, taskId=task, **more)
                assert "Not allowed" in refused["error"]["message"], method_
            await asyncio.sleep(0.05)
            assert bank.paid == []
            again = {"requestState": asked["requestState"], "inputResponses": answers}
            paid = await rpc(full, "bank.pay", "tools/call", name="bank.pay", arguments={}, **again)
            assert paid["result"]["content"][0]["text"] == "paid"
            assert bank.paid == ["1000"]

    drive(main())


def test_a_call_of_the_chat_is_no_task() -> None:
    async def main() -> None:
        hub = Hub("h").register(Bank())
        engine = ChatEngine(hub, Puppet(call("bank__pay"), "Done."))
        async with serving(engine, auth=StaticKeys(KEYS)) as port:
            ada = Keyed(port, FULL)
            (question,) = questions(await ada.say("pay"))
            assert hub.durable is not None
            ((record,),) = ((await hub.durable.journal.list()).calls,)
            for method_ in ("tasks/get", "tasks/update", "tasks/cancel"):
                nonsense = {"inputResponses": {"sum": {"action": "accept", "content": 7}}}
                refused = await rpc(ada, record.id, method_, taskId=record.id, **nonsense)
                assert "Unknown task" in refused["error"]["message"]
            assert (await hub.durable.journal.list()).calls == [record]
            events = await ada.answer(question, text="5")
            assert events[-1]["type"] == "complete"

    drive(main())


def test_a_durable_call_is_followed_by_keys_that_have_the_scopes_of_its_method() -> None:
    async def main() -> None:
        bank = Bank()
        engine = ChatEngine(Hub("h").register(bank), Puppet())
        async with serving(engine, auth=StaticKeys(KEYS)) as port:
            url = f"ws://127.0.0.1:{port}/ws"
            full, less = ({"Authorization": f"Bearer {key}"} for key in (FULL, LESS))
            async with connect_hub(url, headers=full) as remote:
                subscribed = {"method": "bank.pay", "params": {}, "durable": True}
                call_id = await remote.request("plexus_subscribe", subscribed)
            async with connect_hub(url, headers=less) as remote:
                with pytest.raises(NotAllowed):
                    await remote.request("plexus_attach", {"call": call_id})
            async with connect_hub(url, headers=full) as remote:
                assert await remote.request("plexus_attach", {"call": call_id}) == call_id
            assert bank.paid == []

    drive(main())
