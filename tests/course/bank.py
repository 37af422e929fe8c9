"""The answer bank: wrong answers, each with the diagnosis it must get, and right answers written differently.

`tests/course/answers/lNN.py` fills it for lesson NN; `tests/course/test_contract.py` holds the engine to it.
"""

from collections.abc import Callable
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
