"""Approval: a policy decides what it can, a person the rest, and a machine of its own pays.

Try it:

    midcall fsm run examples/approval.py:hub approval '{"item": "a chair", "amount": 120}'
    midcall fsm draw examples/approval.py:hub approval --as mmd

It is durable where it is served: the person may answer days later, after a restart, at another worker, and
nothing is paid twice.
"""

from typing import Any

from msgspec import Struct

from midcall import Ask, Hub, ToolError, method
from midcall.fsm import Event, MachineBuilder

BUDGET = 1000.0


class Purchase(Struct):
    """What somebody wants to buy."""

    item: str
    amount: float


class Decision(Struct):
    """What became of it."""

    note: str


class Receipt(Struct):
    """It is paid."""

    receipt: str


class Bank:
    """Pays."""

    namespace = "bank"

    @method
    async def pay(self, item: str, amount: float, ask: Ask) -> Receipt:
        """Pay for something, once."""
        if amount > BUDGET:
            raise ToolError(f"There are only {BUDGET:.0f} left")
        return Receipt(await ask.step(self._transfer, item, amount))

    async def _transfer(self, item: str, amount: float) -> str:
        return f"{item}: {amount:.2f} paid"


def policy(event: Event) -> dict[str, Any]:
    """Small things need nobody, and free ones are a mistake."""
    purchase = {"item": event["item"], "amount": event["amount"]}
    if purchase["amount"] <= 0:
        return {"id": ["policy", "end"], "note": "What costs nothing needs no approval"}
    to = "payment" if purchase["amount"] < 50 else "boss"
    return {"id": ["policy", to], **purchase}


async def remembered(event: Event, moment: Any) -> dict[str, Any]:
    """The boss has only said yes: what it was about is in the trail."""
    asked = next(one.event for one in moment.trail if one.end == "boss")
    return {"item": asked["item"], "amount": asked["amount"]}


payment = (
    MachineBuilder("payment", "Pays for a purchase.")
    .method("pay", "bank.pay")
    .to("start", "pay", Purchase)
    .to("pay", "end", Receipt)
)

approval = (
    MachineBuilder("approval", "Decides whether something is bought, and pays for it.")
    .function("policy", policy, description="Decides what needs no person")
    .ask("boss", "May they buy {item} for {amount}?")
    .function("approved", remembered)
    .machine("payment", "payment", failure_to="refused")
    .function("refused", lambda event: {"note": event["error"]})
    .to("start", "policy", Purchase)
    .to("policy", "payment", Purchase, label="small")
    .to("policy", "boss", Purchase, label="large")
    .to("policy", "end", Decision, label="free")
    .to("boss", "approved", label="Yes, buy it")
    .to("boss", "end", Decision, label="No", description="Say why not")
    .to("approved", "payment", Purchase)
    .to("payment", "end", Receipt, label="paid")
    .to("payment", "refused", label="failed")
    .to("refused", "end", Decision)
)

hub = Hub("office").register(Bank()).register_machine(payment).register_machine(approval)
