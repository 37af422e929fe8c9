"""What this project's code costs, beside what it is compared with: every number is a ratio from one run.

    python -m benchmarks                  all of them
    python -m benchmarks scaler_step      one of them
    python -m benchmarks --table          the newest results that are kept, and no measuring; README.md quotes that

Each module holds one comparison and says in its docstring what is compared and which bar it must meet; `compare`
does the timing. Results are kept under `results/`, one dated JSON file per machine and comparison.
"""
