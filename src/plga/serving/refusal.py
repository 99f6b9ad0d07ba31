"""What no engine here can serve: an operator that is built from the whole prefix at each token."""

from plga.model.configuration import PldrConfig


def require_collapsed(config: PldrConfig, checkpoint: str) -> None:
    """Raise ValueError unless the operator is constant, naming the command that makes it so.

    A serving engine keeps the keys and values of a token for good and computes many sequences in one pass. Both are
    right only where G_LM does not depend on the input: row by row it is then ordinary attention (arXiv:2608.10288).

    Args:
        config: of the checkpoint.
        checkpoint: its name, for the message.
    """
    if config.operator != "constant":
        raise ValueError(
            f"{checkpoint}: the operator is {config.operator}, expected constant; collapse it first: "
            f"plga collapse {checkpoint} --out DIR"
        )
