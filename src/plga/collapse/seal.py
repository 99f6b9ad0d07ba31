"""Seal a checkpoint: write down what every tensor and file of it is, and sign that."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plga.model.atomic import new_file
from plga.model.checkpoint import load_config
from plga.model.digests import digest_directory, digest_file, require_regular
from plga.model.files import read_json
from plga.model.seal import FORMAT, SEAL, Seal, SealPolicy, check_seal
from plga.model.signing import public_hex, read_private_key, render, sign

REPORT = "collapse_report.json"


def seal(
    directory: Path,
    key: Path,
    name: str | None = None,
    calibration: Sequence[Path] = (),
    overwrite: bool = False,
) -> Seal:
    """Write ``seal.json`` into a checkpoint directory.

    Its serial number is the time in milliseconds since 1970, or one more than that of the seal it replaces.

    Args:
        directory: a checkpoint in our or the published Transformers format.
        key: private key, as ``create_keys`` writes.
        name: of the model; None: the name of the directory.
        calibration: files that the operator was frozen on; their names and hashes go into the seal.
        overwrite: replace a seal that is there.

    Raises:
        ValueError: not a checkpoint; something in it that is no file; two calibration files of one name; a key that is
            none.
        FileExistsError: there is a seal and ``overwrite`` is False.
        OSError: missing or unreadable, a full disk.
    """
    if not directory.is_dir():
        raise NotADirectoryError(f"{directory}: expected the directory of a checkpoint; a .pth cannot be sealed")
    load_config(directory)
    private = read_private_key(key)
    names = [file.name for file in calibration]
    for file in names:
        if names.count(file) > 1:
            raise ValueError(f"--calibration names {file} twice, expected different names")
    hashes = {file.name: digest_file(file)["sha256"] for file in calibration}  # here, where an error names the file
    name = directory.resolve().name if name is None else name
    if not name or not name.isprintable():
        raise ValueError(f"--name is {name!r}, expected printable text: it is what plga verify shows")
    target = directory / SEAL
    if os.path.lexists(target):
        require_regular(target)  # a link would be written through
    with new_file(target, overwrite) as temporary:
        manifest = {
            "format": FORMAT,
            "name": name,
            "serial": max(time.time_ns() // 1_000_000, _last_serial(target) + 1),
            "files": digest_directory(directory, SEAL),
            "calibration": hashes,
            "fidelity": _fidelity(directory / REPORT),
        }
        temporary.write_text(render(sign(manifest, private)), encoding="ascii")
    checked = check_seal(directory, SealPolicy((public_hex(private.public_key()),), required=True))
    assert checked is not None
    return checked


def _last_serial(file: Path) -> int:
    """Serial number of the seal that is there, whatever else it says."""
    serial = read_json(file, "it is there").get("serial") if file.is_file() else 0
    return serial if isinstance(serial, int) else 0


def _fidelity(report: Path) -> Any:
    """The fidelity figures of the operator that was written, if there is a report; else None."""
    said = read_json(report, "it is there") if report.is_file() else {}
    written = said.get("written", said)  # a report compares several operators and wrote one
    figures = written.get("fidelity") if isinstance(written, dict) else None
    try:
        json.dumps(figures, allow_nan=False)
    except ValueError as error:
        raise ValueError(f"{report}: fidelity holds a number that is not finite, expected finite ones") from error
    return figures
