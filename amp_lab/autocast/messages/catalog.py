"""All errors that `explain` knows, in the order in which they are looked for."""

from __future__ import annotations

from typing import Final

from amp_lab.autocast.messages.arguments import ARGUMENTS
from amp_lab.autocast.messages.missing import MISSING
from amp_lab.autocast.messages.products import PRODUCTS
from amp_lab.autocast.messages.ranges import RANGES
from amp_lab.autocast.messages.regions import REGIONS
from amp_lab.autocast.messages.scaler_calls import SCALER
from amp_lab.autocast.messages.unrelated import DEVICES, UNRELATED
from amp_lab.autocast.messages.writes import WRITES

ALL: Final = (
    *SCALER,
    *REGIONS,
    *PRODUCTS,
    *WRITES,
    *ARGUMENTS,
    *RANGES,
    *MISSING,
    *DEVICES,
    *UNRELATED,
)
