"""A sealed checkpoint: a manifest of every tensor and file, signed, and checked when the checkpoint is loaded."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plga.model.atomic import locked, new_file
from plga.model.digests import difference, digest_directory, require_regular
from plga.model.files import read_json

SEAL = "seal.json"
FORMAT = "plga seal 1"
TRUST = "PLGA_TRUST"
_LONGEST = 64 << 20  # bytes of a manifest: some 200 a tensor
_FIELDS = {"format", "name", "serial", "files", "calibration", "fidelity", "public_key", "signature"}


@dataclass(frozen=True)
class SealPolicy:
    """What a checkpoint has to show before it is loaded.

    Args:
        public_keys: Ed25519 keys in hexadecimal, one of which has to have signed. None given: any key may have, so that
            a seal protects against accidents alone: whoever can write the files can also seal them anew.
        required: refuse a checkpoint without a seal. Keys require one too: else removing it would be enough.
        name: that the seal has to be for; None: any.
        at_least: the smallest serial number that is accepted.
        newest: by name of a sealed model, the newest serial number seen; an older one is refused.
    """

    public_keys: tuple[str, ...] = ()
    required: bool = False
    name: str | None = None
    at_least: int = 0
    newest: dict[str, int] = field(default_factory=dict)

    @property
    def demands(self) -> bool:
        """Whether nothing unsigned passes."""
        return self.required or bool(self.public_keys)

    def __post_init__(self) -> None:
        for key in self.public_keys:
            if len(key) != 64 or not set(key) <= set("0123456789abcdef"):
                raise ValueError(f"public_keys holds {key!r}, expected 64 hexadecimal digits")


@dataclass(frozen=True)
class Seal:
    """What a manifest says, once it has been checked."""

    name: str
    serial: int
    public_key: str
    files: dict[str, dict[str, Any]]
    calibration: dict[str, str]
    fidelity: Any

    @property
    def tensors(self) -> int:
        """How many tensors it covers."""
        return sum(len(entry.get("tensors", ())) for entry in self.files.values())


def default_policy() -> SealPolicy:
    """The policy in the JSON file that the environment variable PLGA_TRUST names; without it, one that asks nothing.

    Raises:
        ValueError: not such a file: an object with ``public_keys``, ``required`` and ``newest``, each optional.
        OSError: missing or unreadable.
    """
    file = os.environ.get(TRUST)
    return read_policy(Path(file)) if file else SealPolicy()


def read_policy(file: Path) -> SealPolicy:
    """Read a policy file; raises as ``default_policy``."""
    settings = read_json(file, f"{TRUST} names it")
    absent: dict[str, Any] = {"public_keys": [], "required": False, "newest": {}}
    unknown = settings.keys() - absent.keys()
    if unknown:
        raise ValueError(f"{file}: {min(unknown)} is unknown, expected public_keys, required and newest")
    keys, required, newest = (settings.get(name, nothing) for name, nothing in absent.items())
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ValueError(f"{file}: public_keys is {keys!r}, expected a list of strings")
    if not isinstance(required, bool):
        raise ValueError(f"{file}: required is {required!r}, expected true or false")
    if not isinstance(newest, dict) or not all(type(serial) is int for serial in newest.values()):
        raise ValueError(f"{file}: newest is {newest!r}, expected serial numbers by name of a model")
    try:
        return SealPolicy(tuple(keys), required, newest=newest)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def check_seal(path: str | Path, policy: SealPolicy | None = None, weights: bool = True) -> Seal | None:
    """Check a checkpoint against its seal before anything of it is used.

    Args:
        path: of a checkpoint directory; or anything else, which can have no seal.
        policy: None: that of PLGA_TRUST.
        weights: also hash the safetensors files; without, all the rest.

    Returns:
        What was sealed; None: there is no seal, and none was required.

    Raises:
        ValueError: what differs, by name: a tensor, a file, a field of the manifest, its key, name or serial number.
        OSError: no seal where one is required; or unreadable.
    """
    policy = default_policy() if policy is None else policy
    path = Path(path)
    file = path / SEAL
    if not path.is_dir() or not os.path.lexists(file):
        if policy.demands:
            raise FileNotFoundError(f"{path}: no {SEAL}, but a seal is required; expected a directory that was sealed")
        return None
    manifest = _read_manifest(file, policy)
    seal = _seal(file, manifest)
    if policy.name not in (None, seal.name):
        raise ValueError(f"{file}: name is {seal.name!r}, expected {policy.name!r}: the seal of another model")
    oldest = max(policy.at_least, policy.newest.get(seal.name, 0))
    if seal.serial < oldest:
        raise ValueError(f"{file}: serial is {seal.serial}, expected at least {oldest}: an older seal of {seal.name}")
    expected = seal.files
    if not weights:
        expected = {name: {} if name.endswith(".safetensors") else entry for name, entry in expected.items()}
    differs = difference(expected, digest_directory(path, SEAL, weights))
    if differs is not None:
        raise ValueError(f"{path}: {differs}: not what was sealed")
    return seal


def _read_manifest(file: Path, policy: SealPolicy) -> dict[str, Any]:
    from plga.model.signing import check_signature, parse  # only what is sealed needs the cryptography package

    require_regular(file)
    size = file.stat().st_size
    if size > _LONGEST:
        raise ValueError(f"{file}: {size:,} bytes, expected at most {_LONGEST:,}")
    try:
        text = file.read_bytes().decode("ascii")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: its text was changed, expected ASCII") from error
    manifest = parse(text, str(file))
    if manifest.get("format") != FORMAT:
        raise ValueError(f"{file}: format is {manifest.get('format')!r}, expected {FORMAT!r}")
    check_signature(manifest, policy.public_keys, str(file))
    return manifest


def _seal(file: Path, manifest: dict[str, Any]) -> Seal:
    """The fields of a manifest; whoever signed it may still have written another kind of thing."""
    if manifest.keys() != _FIELDS:
        raise ValueError(f"{file}: differs in the field {min(manifest.keys() ^ _FIELDS)}, expected {FORMAT!r}")
    kinds = {"name": str, "serial": int, "files": dict, "calibration": dict}
    for name, kind in kinds.items():
        if type(manifest[name]) is not kind:
            raise ValueError(f"{file}: {name} is {json.dumps(manifest[name])[:80]}, expected {kind.__name__}")
    if not all(isinstance(entry, dict) for entry in manifest["files"].values()):
        raise ValueError(f"{file}: files holds something else than an object a file")
    return Seal(**{name: manifest[name] for name in Seal.__dataclass_fields__})


def remember_serial(file: Path, seal: Seal) -> None:
    """Raise the newest serial number that a policy file knows of a model; raises as ``default_policy``.

    Two processes that do so at once both get theirs in: a lock beside the file lets one go first.
    """
    read_policy(file)  # before anything is written beside it
    with locked(file.with_name(f".{file.name}.lock")):
        policy = read_policy(file)
        newest = {**policy.newest, seal.name: max(seal.serial, policy.newest.get(seal.name, 0))}
        settings = {"public_keys": list(policy.public_keys), "required": policy.required, "newest": newest}
        with new_file(file, overwrite=True) as temporary:
            temporary.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
