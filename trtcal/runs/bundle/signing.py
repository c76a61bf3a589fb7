"""Signs a bundle's manifest: a DSSE envelope, ECDSA on P-256 with SHA-256.

The private key is the user's PEM file, of which nothing goes into the bundle but the digest of its
public key. Source: DSSE 1.0.2, envelope.md and protocol.md; a signature is ASN.1 DER, as OpenSSL's.
"""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtcal.documents import Document, seal
from trtcal.documents.bounds import MB, read_bytes
from trtcal.errors import InputError
from trtcal.runs.bundle.verifying import PAYLOAD, key_name, pae

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

PASSPHRASE = "TRTCAL_KEY_PASSPHRASE"  # noqa: S105  # the variable's name
WANTED = "make one: `openssl ecparam -name prime256v1 -genkey -noout -out key.pem`"


@dataclass(frozen=True)
class Signer:
    """A private key."""

    key: EllipticCurvePrivateKey

    def sign(self, payload: bytes) -> Document:
        """Return one signature of a payload, with the name of its key."""
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        signature = self.key.sign(pae(PAYLOAD, payload), ECDSA(SHA256()))
        name = key_name(self.key.public_key())
        return {"keyid": name, "sig": base64.b64encode(signature).decode()}

    def public_pem(self) -> bytes:
        """Return the public key as those who verify get it."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def read_signer(path: Path) -> Signer:
    """Read a private key, encrypted or not; `InputError` if it is none on P-256.

    The passphrase of an encrypted one is in the environment, in `TRTCAL_KEY_PASSPHRASE`.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        hint = "pip install 'trtcal[sign]', or leave --key out"
        raise InputError("signing needs the package cryptography", hint) from None
    data, secret = read_bytes(path, MB), os.environ.get(PASSPHRASE)
    is_encrypted = b"ENCRYPTED" in data  # PKCS 8 says so, and OpenSSL's older form
    if is_encrypted and not secret:
        hint = f"give its passphrase in the environment variable {PASSPHRASE}"
        raise InputError(f"the private key {path} is encrypted", hint)
    try:
        key = load_pem_private_key(data, str(secret).encode() if is_encrypted else None)
    except Exception:  # of a damaged key it raises several kinds
        why = f", or {PASSPHRASE} does not open it" if is_encrypted else ""
        raise InputError(f"{path} is not a readable private key{why}", WANTED) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InputError(f"{path} is not an EC private key on P-256", WANTED)
    return Signer(key)


def envelope(payload: bytes, signer: Signer | None) -> Document:
    """Return the DSSE envelope of a payload, without a signature if there is no key.

    Its digest, a field that DSSE does not know, finds changes where no public key is at hand.
    """
    body = {
        "payloadType": PAYLOAD,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [signer.sign(payload)] if signer else [],
    }
    return seal(body)
