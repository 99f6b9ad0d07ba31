"""The block objective: next-token cross-entropy of every row of one pass (the block contract)."""

from torch import Tensor
from torch.nn import LinearCrossEntropyOptions
from torch.nn.functional import linear_cross_entropy

from plga.model.modeling import PldrForCausalLM


def next_token_loss(model: PldrForCausalLM, windows: Tensor) -> Tensor:
    """Mean cross-entropy in nats, a scalar, of the windows [B, S + 1].

    Every row sees a G_LM built from the later tokens of its window too, its target among them (target exposure).
    The head and the loss are one function, so the logits [B, S, V] need not exist at once.
    """
    hidden = model.model(input_ids=windows[:, :-1], use_cache=False).last_hidden_state
    head = model.lm_head
    return linear_cross_entropy(
        hidden.flatten(0, 1),
        head.weight,
        windows[:, 1:].flatten(),
        linear_bias=head.bias,
        options=LinearCrossEntropyOptions(),
    )
