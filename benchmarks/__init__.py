"""What this project's code costs, beside what it is compared with: every number is a ratio from one run.

    python -m benchmarks                  all of them
    python -m benchmarks scaler_step      one of them

Each module holds one comparison and says in its docstring what is compared and which bar it must meet; `side_by_side`
does the timing. Results are kept under `results/`, one dated JSON file per machine and comparison.
"""
