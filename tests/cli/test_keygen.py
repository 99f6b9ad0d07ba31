"""``plga keygen``."""

from pathlib import Path

from tests.cli.runner import plga


def test_a_key_pair(tmp_path: Path) -> None:
    ending = plga("keygen", tmp_path / "new" / "key.pem")
    assert ending.code == 0, ending
    assert (tmp_path / "new" / "key.pem").stat().st_mode & 0o777 == 0o600
    assert "PUBLIC KEY" in (tmp_path / "new" / "key.pub").read_text()
    assert "public key: " in ending.out
    before = (tmp_path / "new" / "key.pem").read_bytes()
    assert "key.pem exists, and no key is overwritten" in plga("keygen", tmp_path / "new" / "key.pem").error()
    assert (tmp_path / "new" / "key.pem").read_bytes() == before
