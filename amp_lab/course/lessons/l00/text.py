"""The words of lesson 00."""

from amp_lab.course.catalog import Diagnosis, Exercise, Lesson

TENSOR_BYTES = Exercise(
    id="0.1",
    title="The bytes of a tensor",
    minutes=5,
    function="tensor_bytes",
    hints=(
        "Two questions, one answer each: how many elements does a tensor of this shape have, and how many bytes does one "
        "element of this dtype take?",
        "`math.prod(shape)` multiplies the dimensions (and gives 1 for `()`, the shape of a single number); every "
        "`torch.dtype` knows its size: look at `torch.float16.itemsize`.",
        "The body is one line: `return <number of elements> * <bytes of one element>`. No division, no `if`, and nothing "
        "that depends on which dtype it is.",
    ),
    diagnoses={
        "bits": Diagnosis(
            "{call} returned {got}; the right answer is {want}, 8 times less. That counts bits: the 16 in `torch.float16` is "
            "its width in bits, and a byte has 8 of them.",
            hint=2,
        ),
        "always-four": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Your code takes every element to be 4 bytes wide. That is "
            "true of `torch.float32` only, and the whole point of FP16 is that it is not.",
            hint=2,
        ),
        "elements": Diagnosis(
            "{call} returned {got}; the right answer is {want}. {got} is how many elements there are; each of them takes "
            "as many bytes as its dtype says.",
            hint=1,
        ),
        "forgets-dimension": Diagnosis(
            "{call} returned {got}; the right answer is {want}. One of the dimensions was left out: the number of elements is "
            "the product of all of them.",
            hint=2,
        ),
        "adds-dimensions": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The dimensions were added up; a 2 × 3 tensor has 6 elements, "
            "not 5.",
            hint=2,
        ),
        "counts-dimensions": Diagnosis(
            "{call} returned {got}; the right answer is {want}. That counts the dimensions, as `len(shape)` does and also a tensor "
            "made *of* the shape's numbers; the number of elements is the product of the dimensions.",
            hint=2,
        ),
        "adds-width": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The bytes of one element were added to the number of elements; "
            "every element takes that many.",
            hint=1,
        ),
        "stays-zero": Diagnosis(
            "{call} returned {got}, and so did every other call; the right answer is {want}. A product that starts at 0 stays 0: "
            "start at 1.",
            hint=2,
        ),
        "python-object": Diagnosis(
            "{call} returned {got}; the right answer is {want}. {got} is what `sys.getsizeof` says of any tensor: the size of "
            "the small Python object, not of the values that it points to.",
            hint=2,
        ),
        "element-width": Diagnosis(
            "{call} returned {got}; the right answer is {want}. Your code counts {width} bytes for an element of "
            "`{dtype}`; it has {right_width}. Ask the dtype itself: a list of cases is never complete.",
            hint=2,
        ),
        "scalar-is-empty": Diagnosis(
            "{call} returned {got}; the right answer is {want}. The shape `()` has no dimensions but one element: it is the "
            "shape of a single number, such as a loss. A product over nothing is 1, not 0.",
            hint=2,
        ),
    },
    why=(
        "A tensor stores its elements side by side, each as wide as its dtype: elements times bytes per element. The product "
        "over the empty shape `()` is 1, so a single number takes one element's bytes, and a dimension of 0 makes it 0 bytes. "
        "Half the width is half the bytes: that is the first thing that FP16 buys."
    ),
)

LESSON = Lesson(
    slug="00_start_here",
    title="Start here",
    minutes=20,
    difficulty="easy",
    needs="plain PyTorch: a model, a loss, an optimizer, a training loop",
    exercises=(TENSOR_BYTES,),
)
