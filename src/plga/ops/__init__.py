"""PLGA as pure functions on tensors: torch only, differentiable, batched over any leading axes.

The order of the modules is the order of the mathematics: ``density`` (Gram of the queries), ``power_law`` (from the
generator to G_LM), ``attention`` (softmax(q G kᵀ/√d) v); beside them ``rotary``, ``chunks``, ``alignment``,
``twirl``, ``acyclicity``, ``spectrum`` and ``envelopes``.
"""
