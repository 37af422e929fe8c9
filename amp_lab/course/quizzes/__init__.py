"""The quizzes: `questions` is what a lesson's `quiz.py` is written with, `answering` what a page calls.

Nothing in the package is called `quiz`, because `amp_lab.course.quiz` is the function.
"""
