"""Generation with a PLDR-LLM: which cache an operator needs, and what it cannot do."""

from typing import Any

from torch import Tensor
from transformers.generation import GenerationMixin

from plga.model.cache import PldrCache
from plga.model.compat import CACHE_NAME


# "GenerationMixin" has to stay in the name: Transformers tells by it which models generate.
class PldrGenerationMixin(GenerationMixin):
    """Transformers' generation, aware of the operator."""

    def generate(
        self, inputs: Tensor | None = None, *args: Any, operator_mode: str | None = None, **kwargs: Any
    ) -> Any:
        """Transformers' ``generate``, which gives a learned operator the cache that it needs.

        Prompts padded on the right are first padded on the left: the next token is read off the last column.

        Args:
            operator_mode: ``recompute`` or ``prompt`` for a learned operator, ``chunked`` for one with a chunked Gram;
                None: what the config says.

        Raises:
            ValueError: a mode that the operator cannot run in, or a chunked prompt in mode ``prompt``.
        """
        generation_config = kwargs.get("generation_config") or (args[0] if args else None) or self.generation_config

        def setting(name: str) -> Any:
            return kwargs[name] if kwargs.get(name) is not None else getattr(generation_config, name, None)

        if self.config.operator == "learned" and setting("cache_implementation") is not None:
            raise ValueError(
                f"cache_implementation is {setting('cache_implementation')!r}, expected None: a learned operator needs "
                "a PldrCache; choose operator_mode instead"
            )
        # Either name, here too; this Transformers' own goes on.
        names = [kwargs.pop(name, None) for name in ("cache", "past_key_values")]
        given = next((cache for cache in names if cache is not None), None)
        cache = given if given is not None else PldrCache(self.config, operator_mode)
        mode = getattr(cache, "mode", "constant")  # any other cache keeps keys and values only
        if operator_mode not in (None, mode):
            raise ValueError(f"operator_mode is {operator_mode!r}, but the cache given is in mode {mode!r}")
        if mode == "prompt" and setting("use_cache") is False:
            raise ValueError("operator_mode is 'prompt' with use_cache=False, expected use_cache=True")
        if mode == "prompt" and setting("prefill_chunk_size") is not None:
            raise ValueError("prefill_chunk_size is set, but mode 'prompt' builds G_LM from the prompt as a whole")
        if given is not None or (mode != "constant" and setting("use_cache") is not False):
            kwargs[CACHE_NAME] = cache

        ids = inputs if inputs is not None else kwargs.pop("input_ids", None)
        embeds, mask, pad = kwargs.get("inputs_embeds"), kwargs.get("attention_mask"), setting("pad_token_id")
        if mask is None and ids is not None and isinstance(pad, int) and pad != setting("eos_token_id"):
            mask = kwargs["attention_mask"] = ids.ne(pad).long()  # as Transformers does, but before it is needed here
        if given is None and mask is not None and mask.dim() == 2:
            order = mask.bool().long().argsort(dim=-1, stable=True)
            kwargs["attention_mask"] = mask.gather(-1, order)
            if ids is not None and ids.shape == mask.shape:
                ids = ids.gather(-1, order)
            if embeds is not None and embeds.shape[:2] == mask.shape:
                kwargs["inputs_embeds"] = embeds.gather(1, order.unsqueeze(-1).expand_as(embeds))
        return super().generate(ids, *args, **kwargs)

    def _assisted_decoding(self, *args: Any, **kwargs: Any) -> Any:
        # Several proposed tokens in one pass: with a learned operator the rows of all would see a G_LM built from
        # all, which is neither the online contract nor a G_LM from the prompt.
        if self.config.gram == "chunked":
            raise ValueError("assisted decoding needs a constant operator: mode 'chunked' takes no token back")
        if self.config.operator == "learned":
            raise ValueError("assisted decoding needs a constant operator: it reads many rows of one pass")
        return super()._assisted_decoding(*args, **kwargs)
