"""The name that durable calls had before: for modules that import it from here."""

from midcall.journal.durable import DurableCalls as Keeper

__all__ = ["Keeper"]
