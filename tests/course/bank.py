"""The answer bank: wrong answers, each with the diagnosis it must get, and right answers written differently.

`tests/course/answers/lNN.py` fills it for lesson NN; `tests/course/test_contract.py` holds the engine to it.
"""

import atexit
import multiprocessing
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Bank:
    """The answers to one exercise, by name."""

    def __init__(self, exercise_id: str) -> None:
        self.exercise_id = exercise_id
        self.wrong_answers: dict[str, tuple[Any, str]] = {}
        self.right_answers: dict[str, Any] = {}

    def wrong(self, diagnosis: str) -> Callable[[Any], Any]:
        """Keep the decorated answer as one that must be told `diagnosis`."""

        def keep(answer: Any) -> Any:
            self.wrong_answers[answer.__name__] = answer, diagnosis
            return answer

        return keep

    def right(self, answer: Any) -> Any:
        """Keep the decorated answer as one that must pass."""
        self.right_answers[answer.__name__] = answer
        return answer


class FileBank(Bank):
    """The same for an exercise whose answers are files: what is decorated returns the code of one."""

    def wrong(self, diagnosis: str) -> Callable[[Any], Any]:
        """Write the code to a file, which is kept."""

        def keep(answer: Any) -> Any:
            self.wrong_answers[answer.__name__] = self._written(answer), diagnosis
            return answer

        return keep

    def right(self, answer: Any) -> Any:
        """Write the code to a file, which is kept."""
        self.right_answers[answer.__name__] = self._written(answer)
        return answer

    def __init__(self, exercise_id: str) -> None:
        super().__init__(exercise_id)
        self._folder: Path | None = None
        if (
            multiprocessing.parent_process() is None
        ):  # the ranks of a launch import the bank, too, and need no files
            self._folder = Path(tempfile.mkdtemp(prefix="amp-lab-answers-"))
            atexit.register(shutil.rmtree, self._folder, ignore_errors=True)

    def _written(self, answer: Callable[[], str]) -> Path:
        if self._folder is None:
            return Path(answer.__name__)
        path = self._folder / f"{answer.__name__}.py"
        path.write_text(answer(), encoding="utf-8")
        return path
