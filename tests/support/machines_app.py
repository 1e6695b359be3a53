"""The hub of the tests of machines: the example of the docs, and one that never comes to an end."""

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

from midcall.fsm import MachineBuilder

_EXAMPLE = Path(__file__).parents[2] / "examples" / "approval.py"
_spec = importlib.util.spec_from_file_location("approval", _EXAMPLE)
assert _spec is not None
assert _spec.loader is not None
_approval = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_approval)


async def hang(event: Any) -> Any:
    await asyncio.get_running_loop().create_future()


slow = MachineBuilder("slow").function("hang", hang).to("start", "hang").to("hang", "end")
hub = _approval.hub.register_machine(slow, time_limit=0.05)
