"""The hub of `people_app`, on a server that shows two calls at once."""

import people_app
from midcall.transports import calls_page

calls_page.MOST = 2

hub = people_app.hub
