"""Notify: people are told of questions that wait for them, by webhook and e-mail.

    hub.asgi(notify=Notify(Webhook("https://hooks.example.com/midcall", secret="whsec_..."), after=300))

Which notices there are, and that each is told once, is the journal's (see `journal.notices`). Here is how
they are told: `wording` says them, `webhook` and `mail` send them. What comes from callers and tools goes
into texts only, where nothing of it acts; where notices go is for the operator to say.
"""

from midcall.journal.notices import Notify
from midcall.notify.mail import Email
from midcall.notify.webhook import Webhook

__all__ = ["Email", "Notify", "Webhook"]
