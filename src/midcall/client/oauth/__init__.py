"""Access to protected MCP servers, by the rules of MCP authorization of all revisions.

    connect(url, auth=OAuth())                                  a person logs in with the browser, once
    connect(url, auth="sk-...")                                 a token that somebody has given out
    connect(url, auth=ClientCredentials(client_id, secret))     a program in its own name

The HTTP wire knows an `Auth` only: what to send with a request, and what to do when one is refused.

    auth.py          Auth, and the plain Token
    access.py        tokens: shown, renewed, got when a server asks; held.py what it has in memory
    person.py        OAuth: a person logs in; login.py one login, redirect.py the browser's way there and back
    machine.py       ClientCredentials, PrivateKeyJwt, WorkloadIdentity, EnterpriseManaged
    discovery.py     where to log in; challenge.py what a refusal says
    registration.py  which client we are; tokens.py what is kept of a login, store.py where
    endpoint.py      the token endpoint; signing.py keys; exchange.py HTTP, reach.py how far it goes

`Authlib` makes the requests of OAuth and `PyJWT` the signatures; both do no I/O.
"""

from midcall.client.oauth.auth import Auth, Token
from midcall.client.oauth.exchange import Fetch
from midcall.client.oauth.machine import ClientCredentials, EnterpriseManaged, PrivateKeyJwt, WorkloadIdentity
from midcall.client.oauth.person import OAuth
from midcall.client.oauth.redirect import Loopback, Redirect
from midcall.client.oauth.store import FileStore, KeyringStore, MemoryStore, TokenStore, default_store

__all__ = [
    "Auth",
    "ClientCredentials",
    "EnterpriseManaged",
    "Fetch",
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
