"""The trials of a sweep in a storage that several machines share: each run begins once, and none is lost.

Every trial is put down before the first one runs, so that how many there are does not depend on who runs them; who
turns a waiting trial into a running one, runs it. Optuna keeps the trials and draws those of a sampled sweep. Not its
own optimization loop: a trial there ends with its process, and here it goes on where it was interrupted.
"""

import json
import math
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError

from plga.criticality.results import Figures, Row
from plga.criticality.sweep_settings import Point, Sweep
from plga.model.atomic import locked
from plga.training.monitor import RESOLUTION

BEAT_EVERY = 30  # seconds between signs of life of a running trial
GRACE = 600  # seconds without one after which its machine is taken for gone
_LOCK_WAIT = 60.0  # seconds that SQLite waits for another process
_CLAIM = "claimed by "
_PLAN_WAIT = 60  # seconds that a sweep waits for the machine that began it


class Taken(NamedTuple):
    """A trial that this place runs."""

    number: int
    point: Point


class SharedStudy:
    """The trials of one sweep.

    Args:
        url: SQLAlchemy URL of the storage.
        sweep: whose trials they are.
        place: names the folder that runs trials here; the same when it is continued.
        create: make the study if the storage holds none of this name.

    Attributes:
        identity: of the study, random; tells it from another one of this name.

    Raises:
        ValueError: a URL that is none, or one without a driver here; or the storage holds another sweep of this name,
            or none where ``create`` is False.
        OSError: a storage that cannot be reached.
    """

    def __init__(self, url: str, sweep: Sweep, place: str, create: bool) -> None:
        self.sweep, self.place = sweep, place
        parsed = _parsed(url)
        self.masked = parsed.render_as_string(hide_password=True)
        # SQLite cannot lock a row, so that two processes could begin one trial (optuna/optuna#4002). It is a file on
        # this machine: a lock beside it does.
        sqlite = parsed.get_backend_name() == "sqlite"
        self._lock_file = Path(f"{parsed.database}.lock") if sqlite and parsed.database else None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with self._storage_errors(), self._exclusive():
            self._storage = _open(url, self.masked, sqlite)
            self._study = self._joined(create, sqlite)
            self._study_id = self._storage.get_study_id_from_name(sweep.settings.name)
            self._plan(sqlite)
        self.identity: str = self._study.user_attrs["identity"]

    # --- beginning ---

    def _joined(self, create: bool, alone: bool) -> optuna.Study:
        name, identity = self.sweep.settings.name, self.sweep.identity()
        sampler = optuna.samplers.RandomSampler()  # of the trials that are drawn when they run; see _drawn
        # Of the logarithm of the order parameter, and of the validation loss.
        directions = [StudyDirection.MINIMIZE, StudyDirection.MINIMIZE]
        made = create
        try:
            if create:
                optuna.create_study(study_name=name, storage=self._storage, directions=directions)
        except optuna.exceptions.DuplicatedStudyError:
            made = False
        try:
            study = optuna.load_study(study_name=name, storage=self._storage, sampler=sampler)
        except KeyError:
            raise ValueError(
                f"{self.masked} holds no sweep {name!r}, though this folder is of one; pass the --storage that it was "
                "begun with, or choose another --out"
            ) from None
        if made or (alone and "identity" not in study.user_attrs):
            study.set_user_attr("sweep", json.dumps(identity))
            study.set_user_attr("planner", self.place)
            study.set_user_attr("identity", self.place)  # the last of these, so that it stands for all
        self._wait_for(study, "identity")
        then = json.loads(study.user_attrs["sweep"])
        if differing := [key for key in identity if then.get(key) != identity[key]]:
            raise ValueError(
                f"{self.masked} holds another sweep {name!r}, with another {', '.join(differing)}; choose another "
                "name=... or --storage"
            )
        return study

    def _wait_for(self, study: optuna.Study, attribute: str) -> None:
        """Wait until the machine that began the sweep has put something down."""
        for _ in range(_PLAN_WAIT):
            if study.user_attrs.get(attribute):
                return
            time.sleep(1)
        raise ValueError(
            f"{self.masked}: the machine that began this sweep has not put down all its trials; start it there first"
        )

    def _plan(self, alone: bool) -> None:
        """Put down every trial; ``alone``: nobody else can be at it."""
        attributes = self._study.user_attrs
        if not attributes.get("planned") and (alone or attributes["planner"] == self.place):
            known = {trial.user_attrs["index"] for trial in self._study.get_trials(deepcopy=False)}
            for index, planned in enumerate(self._planned()):
                if index not in known:
                    self._study.add_trial(_waiting(planned, index))
            self._study.set_user_attr("planned", True)
        self._wait_for(self._study, "planned")

    def _planned(self) -> Iterator[optuna.Trial | None]:
        """Trials at the points that are known before anything ran; None for one that is drawn when it runs."""
        settings = self.sweep.settings
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(settings.seed))
        for point in self.sweep.grid() if settings.sampler == "grid" else [None] * self.sweep.count:
            if point is not None:
                study.enqueue_trial(point._asdict())
            trial = study.ask()
            self._suggested(trial)
            yield None if settings.sampler == "tpe" else trial

    def _suggested(self, trial: optuna.Trial) -> Point:
        sweep = self.sweep
        low, high = sweep.warmups[0], sweep.warmups[-1]
        if all(warmup >= 1 and warmup.is_integer() for warmup in sweep.warmups):
            warmup: float = trial.suggest_int("warmup", int(low), int(high))
        else:
            warmup = trial.suggest_float("warmup", low, high)
        return Point(
            learning_rate=trial.suggest_float(
                "learning_rate", sweep.learning_rates[0], sweep.learning_rates[-1], log=True
            ),
            warmup=float(warmup),
            size=trial.suggest_categorical("size", list(sweep.sizes)),
            seed=trial.suggest_categorical("seed", sweep.seeds),
        )

    # --- running ---

    def mine(self) -> list[Taken]:
        """Trials that ran here when this place was interrupted, and run here still."""
        with self._storage_errors():
            running = self._study.get_trials(states=(TrialState.RUNNING,))
            numbers = [trial.number for trial in running if _place(trial) == self.place]
            self._beat(numbers)
            return [self._drawn(number) for number in numbers]

    def take(self, folder: Path) -> Taken | None:
        """A trial to run here, in ``folder``/trial-<number>; None where none is waiting."""
        with self._storage_errors(), self._exclusive():
            for trial in self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
                # Both first, because this place may be killed after any line: who claimed a running trial runs it, and
                # where two did, it is taken for abandoned after a while.
                self._beat([trial.number])
                self._note(trial.number, f"{_CLAIM}{self.place}", True)
                try:
                    mine = self._storage.set_trial_state_values(self._id(trial.number), TrialState.RUNNING)
                except optuna.exceptions.UpdateFinishedTrialError:
                    mine = False
                if mine:
                    at = {
                        "place": self.place,
                        "host": socket.gethostname(),
                        "folder": str(folder / f"trial-{trial.number}"),
                    }
                    self._note(trial.number, "at", at)
                    return self._drawn(trial.number)
            return None

    def beat(self, numbers: list[int]) -> set[int]:
        """Give a sign of life for trials that run here; those that another machine has taken over meanwhile."""
        with self._storage_errors():
            self._beat(numbers)
            running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
            return set(numbers) - {trial.number for trial in running}

    def complete(self, number: int, figures: Figures) -> bool:
        """Keep what a trial found; whether it was still this place's."""
        values = [math.log10(max(figures.order_parameter, RESOLUTION)), figures.validation_loss]
        return self._end(number, "figures", asdict(figures), TrialState.COMPLETE, values)

    def fail(self, number: int, message: str) -> bool:
        """Keep why a trial failed; whether it was still this place's."""
        return self._end(number, "message", message, TrialState.FAIL, None)

    def free_abandoned(self) -> None:
        """Let trials whose machine went away wait again, under new numbers."""
        with self._storage_errors(), self._exclusive(), warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            fail_stale_trials(self._study)

    def rows(self) -> list[Row]:
        """Every trial, in the order of their numbers."""
        with self._storage_errors():
            return [_row(trial) for trial in self._study.get_trials(deepcopy=False)]

    # --- one trial in the storage ---

    def _id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)

    def _beat(self, numbers: list[int]) -> None:
        for number in numbers:
            self._storage.record_heartbeat(self._id(number))

    def _note(self, number: int, name: str, value: Any) -> None:
        self._storage.set_trial_user_attr(self._id(number), name, value)

    def _drawn(self, number: int) -> Taken:
        """The trial with its point, drawn now if it was not planned, and as it was if it has been drawn before."""
        if self.sweep.settings.sampler == "tpe":
            # By number, because two machines, or one before and after an interruption, must not draw the same.
            seed = (self.sweep.settings.seed + number) % 2**31
            self._study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        return Taken(number, self._suggested(optuna.trial.Trial(self._study, self._id(number))))

    def _end(self, number: int, name: str, value: Any, state: TrialState, values: list[float] | None) -> bool:
        with self._storage_errors():
            try:
                self._note(number, name, value)
                return self._storage.set_trial_state_values(self._id(number), state, values)
            except optuna.exceptions.UpdateFinishedTrialError:
                return False

    def _exclusive(self) -> AbstractContextManager[None]:
        return nullcontext() if self._lock_file is None else locked(self._lock_file)

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            cause = error.__cause__ or error
            raise OSError(f"the storage {self.masked} fails: {' '.join(str(cause).split())[:200]}") from error


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (SQLAlchemyError, ValueError):
        value = "not a URL" if "@" in url else repr(url)  # there may be a password in it
        raise ValueError(
            f"--storage is {value}, expected one as sqlite:///sweep.db or postgresql://user@host/name"
        ) from None
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ValueError(f"--storage is {url!r}, which is gone with this process; expected one as sqlite:///sweep.db")
    return parsed


def _open(url: str, masked: str, sqlite: bool) -> RDBStorage:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return RDBStorage(
                url,
                engine_kwargs={"connect_args": {"timeout": _LOCK_WAIT}} if sqlite else None,
                heartbeat_interval=BEAT_EVERY,
                grace_period=GRACE,
                heartbeat_stale_trial_callback=_wait_again,
            )
    except NoSuchModuleError:
        raise ValueError(f"--storage is {masked}, a database that SQLAlchemy does not know") from None
    except ImportError as error:
        missing = str(error.__cause__ or error)
        raise ValueError(f"--storage is {masked}, and its driver is not installed here ({missing})") from None
    except RuntimeError as error:
        raise ValueError(f"--storage is {masked}, a storage of another Optuna ({error})") from None


def _waiting(like: FrozenTrial | optuna.Trial | None, index: int) -> FrozenTrial:
    """A trial to be run, at the point of ``like``; ``index`` is that of the point in the plan."""
    return optuna.create_trial(
        state=TrialState.WAITING,
        params=None if like is None else like.params,
        distributions=None if like is None else like.distributions,
        user_attrs={"index": index},
    )


def _wait_again(study: optuna.Study, trial: FrozenTrial) -> None:
    study.add_trial(_waiting(trial, trial.user_attrs["index"]))


def _at(trial: FrozenTrial) -> dict[str, str]:
    return trial.user_attrs.get("at", {})


def _place(trial: FrozenTrial) -> str | None:
    """Where a running trial runs."""
    claims = [name.removeprefix(_CLAIM) for name in trial.user_attrs if name.startswith(_CLAIM)]
    return _at(trial).get("place", claims[0] if len(claims) == 1 else None)


def _point(known: dict[str, Any]) -> Point | None:
    """None where a sampled trial has not been drawn, or only in part."""
    if not known.keys() >= set(Point._fields):
        return None
    return Point(float(known["learning_rate"]), float(known["warmup"]), known["size"], known["seed"])


def _row(trial: FrozenTrial) -> Row:
    attributes, state = trial.user_attrs, trial.state.name.lower()
    if trial.state == TrialState.FAIL:
        state = "failed" if "message" in attributes else "abandoned"
    return Row(
        number=trial.number,
        state=state,
        point=_point(trial.params),
        figures=Figures(**attributes["figures"]) if trial.state == TrialState.COMPLETE else None,
        message=attributes.get("message", ""),
        host=_at(trial).get("host", ""),
        folder=_at(trial).get("folder", ""),
    )
