"""What a plant measures: the objective, and the values of further named limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from safebo.exceptions import InvalidMeasurementError, InvalidValueError
from safebo.outputs import number

LONGEST = 200
"""Characters of an answer that an error message shows."""


@dataclass(frozen=True)
class Measurement:
    """The outcome of one experiment."""

    objective: float
    constraints: dict[str, float] = field(default_factory=dict)


def measurement(value: object) -> Measurement:
    """A validated measurement from what a plant returned: a number, or {"objective": .., "constraints": {name: value}}."""
    if isinstance(value, Measurement):
        return _checked(value.objective, value.constraints)
    if isinstance(value, Mapping):
        unknown = [key for key in value if key not in ("objective", "constraints")]
        if unknown:
            raise InvalidMeasurementError(f"A measurement has 'objective' and 'constraints', got {unknown} in {shown(value)}.")
        if "objective" not in value:
            raise InvalidMeasurementError(f"The measurement has no 'objective': {shown(value)}.")
        return _checked(value["objective"], value.get("constraints", {}))
    return _checked(value, {})


def _checked(objective: object, constraints: object) -> Measurement:
    if not isinstance(constraints, Mapping):
        raise InvalidMeasurementError(f"'constraints' must map names to values, got {shown(constraints)}.")
    wrong = [name for name in constraints if not isinstance(name, str)]
    if wrong:
        raise InvalidMeasurementError(f"Names of constraints are text, got {shown(wrong)}.")
    return Measurement(_finite(objective, "objective"), {name: _finite(v, name) for name, v in constraints.items()})


def _finite(value: object, name: str) -> float:
    try:
        return number(value, f"The measurement of {name!r}")
    except InvalidValueError as error:
        raise InvalidMeasurementError(str(error)) from None


def decode(line: str | bytes) -> dict[str, Any]:
    """One line of JSON, which must be an object; NaN and infinities are not JSON."""

    def refuse(constant: str) -> Any:
        raise InvalidMeasurementError(f"{constant} is not a measurement: {shown(line)}.")

    try:
        content = json.loads(line, parse_constant=refuse)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidMeasurementError(f"The plant's answer is not JSON: {shown(line)}.") from None
    if not isinstance(content, dict):
        raise InvalidMeasurementError(f"The plant's answer is not a JSON object: {shown(line)}.")
    return content


def encode(message: Mapping[str, Any]) -> bytes:
    """A message as one line."""
    try:
        return json.dumps(message, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise InvalidValueError(f"{shown(message)} cannot be sent: {error}.") from None


def shown(value: object) -> str:
    """A value for an error message, shortened."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    result = repr(text.strip() if isinstance(text, str) else text)
    return result if len(result) <= LONGEST else result[:LONGEST] + "..."
