"""How many tokens a model can take."""

from __future__ import annotations

import logging
from typing import Any

from ..api import ConfigError, ModelError

logger = logging.getLogger(__name__)

_DEPENDS_ON_LENGTH = frozenset({"dynamic", "longrope"})
"""Rotary embeddings whose frequencies change for every row once any row of a forward is beyond the original length. A
request's text would then depend on what else is in the batch."""


def longest_context(text_config: Any, wanted: int | None) -> int:
    """Return the most tokens of prompt and output together.

    Args:
        text_config: of the language model.
        wanted: the setting `max_model_len`; None: as many as the model can take.

    Raises:
        ConfigError: `wanted` is more than the model can take.
        ModelError: the model names no limit, and neither does the setting.
    """
    made_for = getattr(text_config, "max_position_embeddings", None)
    why = "the model was made for"
    original = _length_before_rescaling(text_config)
    if original is not None and (made_for is None or original < made_for):
        made_for = original
        why = "its rotary embedding is the same for every request up to"
        if wanted is None:
            logger.warning("max_model_len is %d, because %s that many tokens", made_for, why)
    if made_for is None:
        if wanted is None:
            raise ModelError("the model's configuration has no max_position_embeddings; set max_model_len")
        return wanted
    if wanted is not None and wanted > made_for:
        raise ConfigError(f"max_model_len={wanted} is more than the {made_for} tokens that {why}")
    return int(made_for if wanted is None else wanted)


def _length_before_rescaling(text_config: Any) -> int | None:
    parameters = getattr(text_config, "rope_parameters", None) or {}
    # Either the parameters, or a set of them per layer type.
    candidates = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    for candidate in candidates:
        if candidate.get("rope_type") in _DEPENDS_ON_LENGTH:
            length = candidate.get("original_max_position_embeddings") or getattr(
                text_config, "original_max_position_embeddings", None
            )
            return int(length or text_config.max_position_embeddings)
    return None
