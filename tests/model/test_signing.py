"""Signatures: what is signed is what is read, and nothing but it."""

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from plga.model.signing import check_signature, create_keys, parse, read_private_key, read_public_key, render, sign

STATEMENT = {"a": [1, {"b": 0.1}], "ä": None, "c": True}


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "key.pem"
    create_keys(file)
    return file


def test_a_statement_comes_back_and_its_signature_holds(key: Path) -> None:
    signed = sign(STATEMENT, read_private_key(key))
    again = parse(render(signed), "here")
    assert again == signed
    assert {name: again[name] for name in STATEMENT} == STATEMENT
    check_signature(again, (), "here")
    check_signature(again, ("0" * 64, read_public_key(key.with_suffix(".pub"))), "here")


def test_the_same_key_signs_the_same_bytes(key: Path) -> None:
    assert sign(STATEMENT, read_private_key(key)) == sign(dict(reversed(STATEMENT.items())), read_private_key(key))


def test_another_key_is_named(key: Path) -> None:
    signed = sign(STATEMENT, read_private_key(key))
    with pytest.raises(ValueError, match=f"here: public_key is {signed['public_key']}, expected one that is trusted"):
        check_signature(signed, ("0" * 64,), "here")


@pytest.mark.parametrize("signature", ["", "0" * 128, None, 3, "é" * 128, [1]])
def test_a_broken_signature(key: Path, signature: object) -> None:
    signed = sign(STATEMENT, read_private_key(key))
    with pytest.raises(ValueError, match="here: the signature does not fit"):
        check_signature({**signed, "signature": signature}, (), "here")
    # The same bytes in capitals are another spelling, which would be another file.
    with pytest.raises(ValueError, match="here: the signature does not fit"):
        check_signature({**signed, "signature": signed["signature"].upper()}, (), "here")


@pytest.mark.parametrize("signer", ["", "00", None, 7, "g" * 64])
def test_a_broken_key_in_a_statement(key: Path, signer: object) -> None:
    with pytest.raises(ValueError, match="here: public_key is no Ed25519 key"):
        check_signature({**sign(STATEMENT, read_private_key(key)), "public_key": signer}, (), "here")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 1}', "the key 'a' twice"),
        ("[]", "list instead of an object"),
        ("", "truncated"),
        ('{"a": 1', "truncated"),
        ('{"a": NaN}', "not JSON compliant"),
        ('{"a": 1e999}', "not JSON compliant"),
        ("[" * 100_000, "truncated"),
        ('{"a": ' + "9" * 5000 + "}", "truncated"),
        ('{"a": 1}', "its text was changed"),
        (render({"a": 1}) + "\n", "its text was changed"),
    ],
)
def test_only_what_render_writes_is_read(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^here: .*{message}"):
        parse(text, "here")


def test_the_private_key_is_its_owners(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        public = create_keys(tmp_path / "key.pem")
    finally:
        os.umask(before)
    assert public == tmp_path / "key.pub"
    assert (tmp_path / "key.pem").stat().st_mode & 0o777 == 0o600
    assert read_public_key(public) == sign({}, read_private_key(tmp_path / "key.pem"))["public_key"]


@pytest.mark.parametrize("taken", ["key.pem", "key.pub"])
@pytest.mark.parametrize("link", [False, True])
def test_no_key_is_overwritten(tmp_path: Path, taken: str, link: bool) -> None:
    if link:
        (tmp_path / taken).symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / taken).write_text("mine")
    with pytest.raises(FileExistsError, match=f"{taken} exists, and no key is overwritten"):
        create_keys(tmp_path / "key.pem")
    assert [path.name for path in tmp_path.iterdir()] == [taken]


def test_a_private_key_is_not_named_as_a_public_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"key\.pub: expected another ending"):
        create_keys(tmp_path / "key.pub")


def test_other_keys_are_refused(tmp_path: Path) -> None:
    private, public = tmp_path / "private", tmp_path / "public"
    other = ec.generate_private_key(ec.SECP256R1())
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private.write_bytes(other.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    public.write_bytes(other.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(ValueError, match="private: a private key of another kind, expected Ed25519"):
        read_private_key(private)
    with pytest.raises(ValueError, match="public: a public key of another kind, expected Ed25519"):
        read_public_key(public)
    locked = ed25519.Ed25519PrivateKey.generate()
    private.write_bytes(locked.private_bytes(pem, pkcs8, serialization.BestAvailableEncryption(b"word")))
    for content in (private.read_bytes(), public.read_bytes(), b"nothing", b""):
        private.write_bytes(content)
        with pytest.raises(ValueError, match="private: expected an unencrypted Ed25519 private key"):
            read_private_key(private)
    with pytest.raises(ValueError, match="private: expected an Ed25519 public key"):
        read_public_key(private)
    with pytest.raises(FileNotFoundError):
        read_public_key(tmp_path / "absent")
