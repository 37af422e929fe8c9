"""Tracebacks as people copy them, from terminals, notebooks, logs and issues: the message and the place come out."""

import pytest

from amp_lab.autocast.errors import explain
from amp_lab.autocast.messages.users_code import is_users

MESSAGE = "RuntimeError: mat1 and mat2 must have the same dtype, but got Half and Float"
PYTHON = f"""Traceback (most recent call last):
  File "/home/me/train.py", line 12, in main
    loss = model(x)
           ^^^^^^^^
  File "/usr/lib/python3/dist-packages/torch/nn/modules/linear.py", line 125, in forward
    return F.linear(input, self.weight, self.bias)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
{MESSAGE}"""
PLACE = ("/home/me/train.py", 12, "loss = model(x)")
COLOURED = (
    PYTHON.replace("RuntimeError", "\x1b[1;35mRuntimeError\x1b[0m")
    .replace("/home/me/train.py", "\x1b[35m/home/me/train.py\x1b[0m")
    .replace("loss =", "\x1b[31mloss\x1b[0m =")
)


def before(start: str, text: str = PYTHON) -> str:
    return "\n".join(start + line for line in text.splitlines())


JUPYTER = f"""---------------------------------------------------------------------------
RuntimeError                              Traceback (most recent call last)
Cell In[3], line 2
      1 model = torch.nn.Linear(3, 3)
----> 2 model(torch.randn(3, 3).half())
      3 print("done")

File ~/venv/lib/python3.11/site-packages/torch/nn/modules/module.py:1773, in Module._call_impl(self, *args, **kwargs)
   1771     return self._compiled_call_impl(*args, **kwargs)  # type: ignore[misc]
   1772 else:
-> 1773     return self._call_impl(*args, **kwargs)

File ~/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py:125, in Linear.forward(self, input)
    124 def forward(self, input: Tensor) -> Tensor:
--> 125     return F.linear(input, self.weight, self.bias)

{MESSAGE}"""
OLD_JUPYTER = f"""---------------------------------------------------------------------------
RuntimeError                              Traceback (most recent call last)
<ipython-input-5-0a1b2c3d4e5f> in <module>
      1 x = x.half()
----> 2 model(x)

/usr/local/lib/python3.6/dist-packages/torch/nn/modules/module.py in __call__(self, *input, **kwargs)
    475             result = self._slow_forward(*input, **kwargs)
    476         else:
--> 477             result = self.forward(*input, **kwargs)

{MESSAGE}"""
DATABRICKS = f"""{MESSAGE}
File <command-1155567539815967>, line 15
     12 labels = batch['labels']
---> 15 outputs = model(input_ids)
"""
RICH = f"""╭─────────────────────────── Traceback (most recent call last) ────────────────────────────╮
│ /home/me/train.py:12 in main                                                              │
│                                                                                           │
│    11 │   x = x.half()                                                                    │
│ ❱  12 │   loss = model(x)                                                                 │
│    13 │   loss.backward()                                                                 │
│                                                                                           │
│ /opt/conda/lib/python3.9/site-packages/torch/nn/modules/linear.py:125 in forward          │
│                                                                                           │
│ ❱ 125 │   │   return F.linear(input, self.weight, self.bias)                              │
╰───────────────────────────────────────────────────────────────────────────────────────────╯
{MESSAGE}"""
PYTEST = f"""    def test_step():
>       loss = model(x)

train.py:12:
_ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _
E       {MESSAGE}

linear.py:125: RuntimeError"""
TORCHSCRIPT = f"""Traceback (most recent call last):
  File "/home/me/train.py", line 12, in main
    loss = model(x)
RuntimeError: The following operation failed in the TorchScript interpreter.
Traceback of TorchScript (most recent call last):
  File "/home/me/model.py", line 5, in forward
    def forward(self, x):
        return self.layer(x)
               ~~~~~~~~~~ <--- HERE
{MESSAGE}
"""
INDUCTOR = f"""Traceback (most recent call last):
  File "/home/me/train.py", line 12, in main
    loss = model(x)
  File "/tmp/torchinductor_me/ab/cabc.py", line 40, in call
    extern_kernels.mm(buf0, primals_1, out=buf1)
{MESSAGE}"""
NO_SOURCE = f"""Traceback (most recent call last):
  File "/home/me/train.py", line 12, in main
  File "<string>", line 1, in f
{MESSAGE}"""
WORKER = f"""Traceback (most recent call last):
  File "/home/me/train.py", line 30, in <module>
    for batch in loader:
  File "/home/me/venv/lib/python3.12/site-packages/torch/_utils.py", line 733, in reraise
    raise exception
RuntimeError: Caught RuntimeError in DataLoader worker process 0.
Original {PYTHON}
"""
CAUSE = f"""{PYTHON}

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/me/run.py", line 30, in <module>
    train()
ValueError: training failed at step 3"""
CONTEXT = f"""Traceback (most recent call last):
  File "/home/me/a.py", line 3, in f
    d["x"]
KeyError: 'x'

During handling of the above exception, another exception occurred:

{PYTHON}"""
PASTED = {
    "python": (PYTHON, PLACE),
    "ranks": (before("[rank0]: "), PLACE),
    "two ranks": ("\n".join(f"[rank1]: {x}\n[rank0]: {x}" for x in PYTHON.splitlines()), PLACE),
    "Markdown's quotes": (before("> "), PLACE),
    "indented": (f"It says:\n\n{before('    ')}\n", PLACE),
    "a code block": (f"```\n{PYTHON}\n```", PLACE),
    "Windows": (PYTHON.replace("/home/me/", "C:\\Users\\me\\"), ("C:\\Users\\me\\train.py", 12, PLACE[2])),
    "line ends of Windows": (PYTHON.replace("\n", "\r\n"), PLACE),
    "colours": (COLOURED, PLACE),
    "no indentation": ("\n".join(line.strip() for line in PYTHON.splitlines()), PLACE),
    "after a log": (f"step 1 loss 2.0\nWarning: slow\n{PYTHON}", PLACE),
    "Jupyter": (JUPYTER, ("Cell In[3]", 2, "model(torch.randn(3, 3).half())")),
    "old Jupyter": (OLD_JUPYTER, ("Cell In[5]", 2, "model(x)")),
    "Databricks": (DATABRICKS, ("<command-1155567539815967>", 15, "outputs = model(input_ids)")),
    "Rich": (RICH, PLACE),
    "pytest": (PYTEST, ("linear.py", 125, "")),
    "TorchScript": (TORCHSCRIPT, ("/home/me/model.py", 5, "return self.layer(x)")),
    "torch.compile": (INDUCTOR, PLACE),
    "no source": (NO_SOURCE, ("<string>", 1, "")),
    "a worker": (WORKER, PLACE),
    "a cause": (CAUSE, PLACE),
    "a context": (CONTEXT, PLACE),
}


@pytest.mark.parametrize("name", PASTED)
def test_the_message_and_the_place_come_out(name: str) -> None:
    text, place = PASTED[name]
    explanation = explain(text)
    assert explanation.id == "matmul-dtypes"
    assert explanation.message.splitlines()[0] == MESSAGE
    assert explanation.where is not None
    assert (explanation.where.file, explanation.where.line, explanation.where.text) == place


def test_which_other_error_there_was() -> None:
    for name, also in {
        "a worker": "It was reported as RuntimeError: Caught RuntimeError in DataLoader worker process 0.",
        "a cause": "It was raised again as ValueError: training failed at step 3 (/home/me/run.py, line 30)",
        "a context": "It was raised while another error was handled: KeyError: 'x' (/home/me/a.py, line 3)",
        "TorchScript": "It was reported as RuntimeError: The following operation failed in the TorchScript",
        "python": "",
        "after a log": "",
    }.items():
        assert explain(PASTED[name][0]).also.startswith(also), name
        assert bool(explain(PASTED[name][0]).also) == bool(also), name


def test_of_two_unknown_errors_the_one_that_reached_the_top_is_explained() -> None:
    text = CAUSE.replace(MESSAGE, "RuntimeError: the disk is full")
    explanation = explain(text)
    assert explanation.message == "ValueError: training failed at step 3"
    assert "from another error: RuntimeError: the disk is full" in explanation.also


def test_a_message_of_several_lines_stays_whole() -> None:
    explanation = explain(
        f"{PYTHON.replace(MESSAGE, 'models.ShapeError: wrong')}\n  in layer 3\n  of model a"
    )
    assert explanation.message == "ShapeError: wrong\n  in layer 3\n  of model a"


def test_a_warning_of_a_terminal() -> None:
    warned = """/home/me/train.py:41: UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`.
  scheduler.step()
"""
    explanation = explain(warned)
    assert explanation.id == "scheduler-first"
    assert explanation.message.startswith("UserWarning: Detected call of")
    assert "scheduler.step()\n" not in explanation.message
    assert explanation.where is not None
    assert (explanation.where.file, explanation.where.line) == ("/home/me/train.py", 41)
    assert explanation.where.text == "scheduler.step()"


def test_a_known_message_in_the_middle_of_a_log() -> None:
    log = f"epoch 1\nFailed: {MESSAGE}\ntorch.distributed.elastic: ChildFailedError: see above\nbye"
    assert explain(log).id == "matmul-dtypes"


def test_an_error_of_a_custom_class() -> None:
    explanation = explain(PYTHON.replace(MESSAGE, "Failed: the moon is full"))
    assert explanation.message == "Failed: the moon is full"
    assert explanation.where is not None
    bare = explain(NO_SOURCE.replace(MESSAGE, "Failed: the moon is full"))
    assert bare.message == "Failed: the moon is full"
    assert bare.where is not None
    assert bare.where.text == ""  # the message is no code


def test_code_that_torch_compile_has_written_is_nobodys() -> None:
    assert not is_users("/tmp/torchinductor_me/ab/cabc.py")
    assert not is_users("C:\\Temp\\torchinductor_me\\ab\\cabc.py")
    assert is_users("/home/me/torchinductor/train.py")
