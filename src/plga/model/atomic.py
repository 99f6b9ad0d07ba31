"""Files and directories that appear whole or not at all, and locks."""

import ctypes
import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


@contextmanager
def new_directory(target: Path, overwrite: bool, kind: str = "a checkpoint of a PLDR-LLM") -> Iterator[Path]:
    """A temporary directory beside ``target`` that takes its place when the block ends without an error.

    On an error, or when the process is interrupted in the block, the temporary directory goes and ``target`` stays as
    it was. What is written is on the disk before it is renamed. Whoever reads ``target`` meanwhile finds the old or the
    new, also when this process is killed: both change places at once. Where a file system cannot do that, there is a
    moment in which only hidden siblings hold them.

    Raises:
        FileExistsError: as ``check_new_directory``, before or after the block.
        OSError: the disk is full, and whatever else the file system says.
    """
    target = target.resolve()
    check_new_directory(target, overwrite, kind)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = _sibling(target), _sibling(target)
    try:
        with _disk_errors(target):
            temporary.mkdir()
            yield temporary
            mode = _mode()
            for path in (*temporary.rglob("*"), temporary):
                if path.is_file():
                    path.chmod(mode)  # safetensors hides its files from everybody else
                _sync(path)
            # Once more: another process may have put something there meanwhile.
            if check_new_directory(target, overwrite, kind):
                _replace(target, temporary, old)
            else:
                _put(temporary, target)
            _sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)


def _put(temporary: Path, target: Path) -> None:
    try:
        os.rename(temporary, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise _taken(target) from error
        raise


def _replace(target: Path, temporary: Path, old: Path) -> None:
    """Put ``temporary`` in the place of ``target``, which goes to one of the other two."""
    if _exchanged(target, temporary):
        return
    os.rename(target, old)
    try:
        os.rename(temporary, target)
    except BaseException:
        os.rename(old, target)
        raise


def _exchanged(one: Path, other: Path) -> bool:
    """Let two directories change places in one step; False: this system or file system has no such step."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # not Linux
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


def check_new_directory(target: Path, overwrite: bool, kind: str = "a checkpoint of a PLDR-LLM") -> bool:
    """Whether there is something that ``new_directory`` will replace.

    Args:
        target: new or empty, or with ``overwrite`` what is to be replaced.
        kind: what that has to be: "a checkpoint of a PLDR-LLM", "a causal LM", "a tokenizer", "an audit" or "a
            comparison of audits".

    Raises:
        FileExistsError: ``target`` is a file, or a directory that is not empty and ``overwrite`` is False or that
            holds something else than ``kind``.
        OSError: nothing can be written where it is to be.
    """
    target = target.resolve()
    # The root of a file system has no parent: it exists, so what is said of it comes below.
    parent = next((folder for folder in target.parents if folder.exists()), target)
    if not os.access(parent, os.W_OK | os.X_OK):
        raise PermissionError(f"{parent} cannot be written to, expected a folder for {target.name} that can")
    full = target.exists() and (not target.is_dir() or any(target.iterdir()))
    if full and not overwrite:
        raise _taken(target)
    if full and not _REPLACEABLE[kind](target):
        raise FileExistsError(f"{target} exists and is not {kind} alone, so it is not overwritten")
    return full


@contextmanager
def new_file(target: Path, overwrite: bool) -> Iterator[Path]:
    """A temporary file beside ``target`` that takes its place when the block ends without an error.

    Raises:
        FileExistsError: ``target`` exists, before or after the block, and ``overwrite`` is False; or it is a directory.
        OSError: the disk is full, and whatever else the file system says.
    """
    target = target.resolve()
    if target.is_dir() or (target.exists() and not overwrite):
        raise _exists(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = _sibling(target)
    try:
        with _disk_errors(target):
            yield temporary
            temporary.chmod(_mode())  # as in new_directory
            _sync(temporary)
            if overwrite or not _linked(temporary, target):
                os.replace(temporary, target)
            _sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _taken(target: Path) -> FileExistsError:
    return FileExistsError(f"{target} exists, expected a new or empty directory, or --overwrite")


@contextmanager
def locked(file: Path, otherwise: str | None = None) -> Iterator[None]:
    """Hold ``file``, which is made if need be; wait for another holder, or raise where ``otherwise`` says what to say.

    The lock ends with the process that holds it, however it ends.

    Raises:
        ValueError: another process holds it, and ``otherwise`` is given.
        OSError: the file cannot be made.
    """
    import fcntl  # which there is not everywhere that models are loaded

    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (fcntl.LOCK_NB if otherwise else 0))
        except BlockingIOError:
            raise ValueError(otherwise) from None
        yield
    finally:
        os.close(descriptor)


def _exists(target: Path) -> FileExistsError:
    return FileExistsError(f"{target} exists, expected a new file, or --overwrite")


def _linked(temporary: Path, target: Path) -> bool:
    """Give a file its name, unless another process has taken it meanwhile; False: this file system has no links."""
    try:
        os.link(temporary, target)
    except FileExistsError as error:
        raise _exists(target) from error
    except OSError:
        if os.path.lexists(target):
            raise _exists(target) from None
        return False
    return True


def _is_checkpoint(directory: Path) -> bool:
    """Whether a directory holds a checkpoint that we write, and no folder that no checkpoint has."""
    return _model_type(directory) in ("pldr", "pldrllm", "plga_adopted")


def _is_model(directory: Path) -> bool:
    """Whether a directory holds a model of Transformers, and no folder."""
    return _model_type(directory) is not None


def _model_type(directory: Path) -> str | None:
    try:
        kind = json.loads((directory / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return None
    return kind if isinstance(kind, str) and not any(path.is_dir() for path in directory.iterdir()) else None


def _is_tokenizer(directory: Path) -> bool:
    """Whether a directory holds a tokenizer and nothing else."""
    needed = {"tokenizer.json", "tokenizer_config.json"}
    found = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    return needed <= found <= needed | {"special_tokens_map.json"}


def _is_audit(directory: Path) -> bool:
    """Whether a directory holds an audit and nothing else."""
    return _holds(directory, {"audit.json", "audit.npz", "report.html"})


def _is_comparison(directory: Path) -> bool:
    """Whether a directory holds a comparison of audits and nothing else."""
    return _holds(directory, {"report.html"})


def _holds(directory: Path, names: set[str]) -> bool:
    return directory.is_dir() and {path.name for path in directory.iterdir()} == names


_REPLACEABLE: dict[str, Callable[[Path], bool]] = {
    "a checkpoint of a PLDR-LLM": _is_checkpoint,
    "a causal LM": _is_model,
    "a tokenizer": _is_tokenizer,
    "an audit": _is_audit,
    "a comparison of audits": _is_comparison,
}


def _sibling(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")


def _mode() -> int:
    """Of a new file, as the umask of this process, which can only be read by setting it, leaves it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask


def _sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _disk_errors(target: Path) -> Iterator[None]:
    """Turn what safetensors, torch and tokenizers make of a failed write back into the OSError that it was."""
    try:
        yield
    except Exception as error:  # tokenizers raises nothing more special
        cause = error.__context__ if isinstance(error, SafetensorError | RuntimeError) else error
        number = cause.errno if isinstance(cause, OSError) else _os_error(str(error))
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(target)) from error


def _os_error(message: str) -> int | None:
    """The number in a message of a library written in Rust."""
    match = re.search(r"os error (\d+)", message)
    return int(match[1]) if match else None
