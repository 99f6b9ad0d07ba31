"""Ed25519 signatures over JSON, and the key files that make and check them."""

import json
import os
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNED_BY, SIGNATURE = "public_key", "signature"


def render(statement: dict[str, Any]) -> str:
    """The one text of a JSON object: keys sorted, one space of indentation, ASCII; what is signed and what is written.

    Raises:
        ValueError: a number that is not finite.
    """
    return json.dumps(statement, sort_keys=True, indent=1, allow_nan=False) + "\n"


def parse(text: str, what: str) -> dict[str, Any]:
    """Read what ``render`` wrote, and nothing else: another spelling of the same object is refused.

    Args:
        what: begins every message.

    Raises:
        ValueError: not JSON, a key twice, no object, or not the text that ``render`` gives.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ValueError(f"the key {key!r} twice")
            found[key] = value
        return found

    try:
        statement = json.loads(text, object_pairs_hook=once)
        if not isinstance(statement, dict):
            raise ValueError(f"{type(statement).__name__} instead of an object")
        exact = render(statement) == text
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what}: truncated, or not JSON as plga writes it ({error})") from error
    if not exact:
        raise ValueError(f"{what}: its text was changed, expected the spelling that plga writes")
    return statement


def sign(statement: dict[str, Any], key: Ed25519PrivateKey) -> dict[str, Any]:
    """The statement with the public key and the signature over all of it."""
    signed = {**statement, SIGNED_BY: public_hex(key.public_key())}
    return {**signed, SIGNATURE: key.sign(render(signed).encode()).hex()}


def check_signature(signed: dict[str, Any], trusted: tuple[str, ...], what: str) -> None:
    """Check what ``sign`` made.

    Args:
        trusted: public keys in hexadecimal, one of which has to have signed; none: any key may have.
        what: begins every message.

    Raises:
        ValueError: signed by another key, or not by the one that it names.
    """
    unsigned = {name: value for name, value in signed.items() if name != SIGNATURE}
    signer, signature = signed.get(SIGNED_BY), signed.get(SIGNATURE)
    try:
        public = Ed25519PublicKey.from_public_bytes(_octets(signer, 32))
    except ValueError as error:
        raise ValueError(f"{what}: {SIGNED_BY} is no Ed25519 key of 64 hexadecimal digits") from error
    if trusted and signer not in trusted:
        raise ValueError(f"{what}: {SIGNED_BY} is {signer}, expected one that is trusted: {', '.join(trusted)}")
    try:
        public.verify(_octets(signature, 64), render(unsigned).encode())
    except (ValueError, InvalidSignature) as error:
        raise ValueError(f"{what}: the {SIGNATURE} does not fit what it says: a field of it was changed") from error


def _octets(digits: Any, count: int) -> bytes:
    """Bytes from lower-case hexadecimal, which spells them in one way only."""
    if isinstance(digits, str) and len(digits) == 2 * count and bytes.fromhex(digits).hex() == digits:
        return bytes.fromhex(digits)
    raise ValueError("not the hexadecimal digits expected")


def public_hex(key: Ed25519PublicKey) -> str:
    """The 32 bytes of a public key in hexadecimal, as a policy names it."""
    return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw).hex()


def create_keys(file: Path) -> Path:
    """Draw a key pair: the private key goes into ``file``, for its owner's eyes only, the public one into NAME.pub.

    Raises:
        ValueError: ``file`` itself ends in .pub.
        FileExistsError: one of the files exists; no key is ever overwritten.
        OSError: whatever else the file system says.
    """
    public_file = file.with_suffix(".pub")
    if public_file == file:
        raise ValueError(f"{file}: expected another ending, as the public key goes into {public_file.name}")
    for path in (file, public_file):
        if os.path.lexists(path):
            raise FileExistsError(f"{path} exists, and no key is overwritten; expected a new name")
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    file.parent.mkdir(parents=True, exist_ok=True)
    # O_EXCL: nobody's file or link is written through, and the mode holds from the first byte on.
    for path, content, mode in ((file, private, 0o600), (public_file, public, 0o644)):
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
    return public_file


def read_private_key(file: Path) -> Ed25519PrivateKey:
    """Raises ValueError on anything but an unencrypted Ed25519 private key in PEM, OSError on an unreadable file."""
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(
            f"{file}: expected an unencrypted Ed25519 private key in PEM, as plga keygen writes"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"{file}: a private key of another kind, expected Ed25519, as plga keygen writes")
    return key


def read_public_key(file: Path) -> str:
    """A public key in hexadecimal; raises ValueError on anything but Ed25519 in PEM, OSError on an unreadable file."""
    try:
        key = serialization.load_pem_public_key(file.read_bytes())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{file}: expected an Ed25519 public key in PEM, as plga keygen writes") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(f"{file}: a public key of another kind, expected Ed25519, as plga keygen writes")
    return public_hex(key)
