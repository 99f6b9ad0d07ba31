"""How a PLDR-LLM is read from a directory: as it was sealed, of its own kind, and its constants without gradient."""

from pathlib import Path
from typing import Any

from transformers.modeling_utils import PreTrainedModel

from plga.model.operator import ConstantOperator
from plga.model.seal import SealPolicy, check_seal

# Arguments of ``from_pretrained`` that say where a file is.
HUB = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")


class CheckedLoading(PreTrainedModel):
    """Transformers' model with a ``from_pretrained`` that looks first."""

    @classmethod
    def from_pretrained(cls, *args: Any, seal: SealPolicy | None = None, **kwargs: Any) -> Any:
        """Transformers' ``from_pretrained``, of a sealed directory only as it was sealed.

        It switches gradients on everywhere; a constant stays constant.

        Args:
            seal: what a sealed directory is checked against, and whether there has to be a seal; None: as PLGA_TRUST
                says.

        Raises:
            ValueError, OSError: as ``check_seal``, before anything is loaded; and what Transformers raises.
        """
        path = args[0] if args else kwargs.get("pretrained_model_name_or_path")
        if path is not None:  # else all tensors are given
            check_seal(Path(path) / kwargs.get("subfolder", ""), seal)
        if args and kwargs.get("config") is None and not kwargs.get("state_dict"):
            found, _ = cls.config_class.get_config_dict(args[0], **{k: kwargs[k] for k in HUB if k in kwargs})
            if found.get("model_type", cls.config_class.model_type) != cls.config_class.model_type:
                raise ValueError(
                    f"{args[0]}: model_type is {found['model_type']!r}, but {cls.__name__} reads "
                    f"{cls.config_class.model_type!r}; an Auto class, AutoModelForCausalLM, takes either"
                )
        loaded = super().from_pretrained(*args, **kwargs)
        for module in (loaded[0] if isinstance(loaded, tuple) else loaded).modules():
            if isinstance(module, ConstantOperator):
                module.requires_grad_(False)
        return loaded
