"""Signatures of a client: proofs that it is the one (RFC 7523), and that a token is its own (RFC 9449)."""

import base64
import hashlib
import secrets
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm

from midcall.client.oauth.exchange import origin_of, server_of

LIFETIME = 300
"""Seconds for which an assertion holds."""

PROOF_ALGORITHM = "ES256"

_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}

PrivateKey: TypeAlias = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


class ClientKey:
    """The private key of a client, for `private_key_jwt`."""

    def __init__(self, pem: str | bytes, *, algorithm: str | None = None, key_id: str | None = None) -> None:
        """Take a key in PEM. Raises `ValueError` if it is none, or cannot sign in this way."""
        key = _loaded(pem)
        fit = _fit(key)
        if algorithm is not None and algorithm not in fit:
            raise ValueError(f"This key cannot sign with {algorithm}, only with {', '.join(fit)}")
        self._key = key
        self._fit = (algorithm,) if algorithm else fit
        self._key_id = key_id

    def assertion(self, client_id: str, audience: str, accepted: Sequence[str] | None) -> str | None:
        """Who we are, for this authorization server only; `None` if it accepts no signature of this key."""
        algorithm = next((one for one in self._fit if accepted is None or one in accepted), None)
        if algorithm is None:
            return None
        now = int(time.time())
        claims = {
            "iss": client_id,
            "sub": client_id,
            "aud": audience,
            "jti": secrets.token_urlsafe(16),
            "iat": now,
            "exp": now + LIFETIME,
        }
        headers = {"kid": self._key_id} if self._key_id else None
        return jwt.encode(claims, self._key, algorithm, headers=headers)

    def __repr__(self) -> str:
        return "ClientKey(...)"


class ProofKey:
    """A key that tokens are bound to: whoever shows such a token also shows that he has the key."""

    def __init__(self, pem: str | None = None) -> None:
        """Take a key that was made before, or make a new one."""
        key = ec.generate_private_key(ec.SECP256R1()) if pem is None else _loaded(pem)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError("Proofs are signed with ES256")
        self._key = key
        self._public: dict[str, Any] = ECAlgorithm(ECAlgorithm.SHA256).to_jwk(key.public_key(), as_dict=True)
        self._nonces: dict[str, str] = {}

    @property
    def pem(self) -> str:
        """The private key, to be kept with the tokens."""
        return self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()

    def proof(self, verb: str, url: str, token: str | None = None) -> str:
        """A proof for one request, with the token that it shows."""
        claims: dict[str, Any] = {
            "jti": secrets.token_urlsafe(16),
            "htm": verb,
            "htu": server_of(url),
            "iat": int(time.time()),
        }
        if nonce := self._nonces.get(origin_of(url)):
            claims["nonce"] = nonce
        if token is not None:
            digest = hashlib.sha256(token.encode("ascii")).digest()
            claims["ath"] = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        return jwt.encode(
            claims, self._key, PROOF_ALGORITHM, headers={"typ": "dpop+jwt", "jwk": self._public}
        )

    def heard(self, url: str, nonce: str | None, proof: str | None) -> bool:
        """A server wants this nonce in the proofs for it. True if it was not in the one that it refused."""
        if not nonce or (proof and _said(proof).get("nonce") == nonce):
            return False
        self._nonces[origin_of(url)] = nonce
        return True

    def __repr__(self) -> str:
        return "ProofKey(...)"


def _said(proof: str) -> dict[str, Any]:
    """The claims of a proof of our own."""
    claims: dict[str, Any] = jwt.decode(proof, options={"verify_signature": False})
    return claims


def _loaded(pem: str | bytes) -> PrivateKey:
    data = pem.encode() if isinstance(pem, str) else pem
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError):
        raise ValueError("This is no private key in PEM, or it has a password") from None
    if not isinstance(key, PrivateKey):
        raise ValueError("A private key must be RSA, EC or Ed25519")  # noqa: TRY004  a value from outside
    return key


def _fit(key: PrivateKey) -> tuple[str, ...]:
    """What a key can sign with, first what every server must know (RFC 7523)."""
    match key:
        case rsa.RSAPrivateKey():
            return ("RS256", "PS256")
        case ed25519.Ed25519PrivateKey():
            return ("EdDSA",)
        case _ if key.curve.name in _CURVES:
            return (_CURVES[key.curve.name],)
    raise ValueError(f"Keys on the curve {key.curve.name} cannot be used")
