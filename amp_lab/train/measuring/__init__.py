"""How `amp_lab.train.measure` measures: time, memory, operations, and the ladder of lesson 08."""
