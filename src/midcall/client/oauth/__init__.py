"""Access to protected MCP servers, by the rules of MCP authorization of all revisions.

    connect(url, auth=OAuth())                                  a person logs in with the browser, once
    connect(url, auth="sk-...")                                 a token that somebody has given out
    connect(url, auth=ClientCredentials(client_id, secret))     a program in its own name

The HTTP wire knows an `Auth` only: what to send with a request, and what to do when one is refused.

    access.py        Auth, the plain Token, and Access: shows tokens, renews them, gets them when asked
    login.py         OAuth: a person logs in with the browser
    machine.py       ClientCredentials, PrivateKeyJwt, WorkloadIdentity, EnterpriseManaged
    discovery.py     what a refusal says, and where to log in
    registration.py  which client we are there
    tokens.py        the token endpoint, what it issues, and keys that tokens are bound to
    store.py         what is kept of a login, and where
    fetch.py         HTTP, and how far it may go

`Authlib` makes the requests of OAuth and `PyJWT` the signatures; both do no I/O.
"""

from midcall.client.oauth.access import Auth, Token
from midcall.client.oauth.login import Loopback, OAuth, Redirect
from midcall.client.oauth.machine import ClientCredentials, EnterpriseManaged, PrivateKeyJwt, WorkloadIdentity
from midcall.client.oauth.store import FileStore, KeyringStore, MemoryStore, TokenStore, default_store

__all__ = [
    "Auth",
    "ClientCredentials",
    "EnterpriseManaged",
    "FileStore",
    "KeyringStore",
    "Loopback",
    "MemoryStore",
    "OAuth",
    "PrivateKeyJwt",
    "Redirect",
    "Token",
    "TokenStore",
    "WorkloadIdentity",
    "default_store",
]
