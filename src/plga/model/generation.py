"""Generation with a PLDR-LLM: which cache an operator needs, and what it cannot do."""

from typing import Any

from torch import Tensor
from transformers import DynamicCache, GenerationConfig
from transformers.generation import GenerationMixin, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.configuration_utils import GenerationMode
from transformers.utils import ModelOutput

from plga.model.cache import PldrCache
from plga.model.compat import CACHE_NAME
from plga.model.guard import GuardedOutput, WatchedLogits, WatchedStopping, watch_over
from plga.model.guard_settings import guarded


# "GenerationMixin" has to stay in the name: Transformers tells by it which models generate.
class PldrGenerationMixin(GenerationMixin):
    """Transformers' generation, aware of the operator and of its guard."""

    # The learned model that a guard recomputes with, if there is one: see guard_tensors.attach.
    recomputing: tuple[Any, ...] = ()

    def generate(
        self, inputs: Tensor | None = None, *args: Any, operator_mode: str | None = None, **kwargs: Any
    ) -> Any:
        """Transformers' ``generate``, which gives a learned operator the cache that it needs.

        Prompts padded on the right are first padded on the left: the next token is read off the last column.

        Args:
            operator_mode: ``recompute`` or ``prompt`` for a learned operator, ``chunked`` for one with a chunked Gram;
                None: what the config says.
            guard (in ``kwargs``): for a constant operator, GuardSettings as plain data, or False for none; None: what
                the generation config says. Its statistics come back as ``guard`` of a GuardedOutput, with
                ``return_dict_in_generate=True``.

        Raises:
            ValueError: a mode that the operator cannot run in, a chunked prompt in mode ``prompt``, or a guard that
                cannot watch.
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
        chunk = setting("prefill_chunk_size")
        if chunk is not None and (type(chunk) is not int or chunk < 1):  # nor a bool, which is an int
            raise ValueError(f"prefill_chunk_size is {chunk!r}, expected a whole number of tokens >= 1, or None")
        if mode == "prompt" and chunk is not None:
            raise ValueError("prefill_chunk_size is set, but mode 'prompt' builds G_LM from the prompt as a whole")
        if given is not None or (mode != "constant" and setting("use_cache") is not False):
            kwargs[CACHE_NAME] = cache

        ids = inputs if inputs is not None else kwargs.pop("input_ids", None)
        embeds, mask, pad = kwargs.get("inputs_embeds"), kwargs.get("attention_mask"), setting("pad_token_id")
        if mask is None and ids is not None and isinstance(pad, int) and pad != setting("eos_token_id"):
            mask = kwargs["attention_mask"] = ids.ne(pad).long()  # as Transformers does, but before it is needed here
        if guarded(self._guard(generation_config, kwargs.get("guard"))):
            if kwargs.get("custom_generate") is not None:
                raise ValueError("guard is set with custom_generate, which it cannot watch; pass guard=False")
            if ids is not None and mask is not None and ids.shape != mask.shape:
                raise ValueError(
                    f"guard is set with input_ids {tuple(ids.shape)} and attention_mask {tuple(mask.shape)}, expected "
                    "input_ids of the whole text: the learned model reads all of it"
                )
        if given is None and mask is not None and mask.dim() == 2:
            order = mask.bool().long().argsort(dim=-1, stable=True)
            kwargs["attention_mask"] = mask.gather(-1, order)
            if ids is not None and ids.shape == mask.shape:
                ids = ids.gather(-1, order)
            if embeds is not None and embeds.shape[:2] == mask.shape:
                kwargs["inputs_embeds"] = embeds.gather(1, order.unsqueeze(-1).expand_as(embeds))
        return super().generate(ids, *args, **kwargs)

    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        given = model_kwargs.get(CACHE_NAME)
        super()._prepare_cache_for_generation(
            generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
        )
        # Ours holds the same, and copies nothing of it when a token is added.
        own = type(model_kwargs.get(CACHE_NAME)) is DynamicCache and not generation_config.cache_implementation
        if given is None and own:
            # Not beyond the context: a length that only a stopping criterion is to end may be any number.
            room = min(max_cache_length, self.config.max_position_embeddings)
            model_kwargs[CACHE_NAME] = PldrCache(self.config, room=room)

    def _guard(self, generation_config: GenerationConfig | None, told: Any = None) -> Any:
        """Settings of the guard in effect, not yet read: those told, of the configuration given, or of the model."""
        for settings in (told, getattr(generation_config, "guard", None)):
            if settings is not None:
                return settings
        return getattr(self.generation_config, "guard", None)

    def _prepare_generation_config(
        self, generation_config: GenerationConfig | None, guard: Any = None, **kwargs: Any
    ) -> tuple[GenerationConfig, dict[str, Any]]:
        # Transformers would take a setting that it does not know for an argument of the model.
        prepared, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)
        prepared.guard = self._guard(generation_config, guard)
        return prepared, model_kwargs

    def _validate_generation_mode(
        self, generation_mode: GenerationMode, generation_config: GenerationConfig, *args: Any
    ) -> None:
        watched = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
        if guarded(generation_config.guard) and generation_mode not in watched:
            raise ValueError(
                f"guard is set, but the generation mode is {generation_mode.value}, expected greedy search or "
                "sampling; pass guard=False to go without"
            )
        super()._validate_generation_mode(generation_mode, generation_config, *args)

    def init_continuous_batching(self, generation_config: GenerationConfig | None = None, **kwargs: Any) -> Any:
        """Transformers' continuous batching, which no guard can watch.

        Raises:
            ValueError: a guard is set.
        """
        if guarded(self._guard(generation_config)):
            raise ValueError(
                "guard is set, but continuous batching has no place for it, expected generate(); "
                "GenerationConfig(guard=False) goes without"
            )
        return super().init_continuous_batching(generation_config, **kwargs)

    def _sample(
        self,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **kwargs: Any,
    ) -> Any:
        # Greedy decoding too.
        if not guarded(generation_config.guard):
            return super()._sample(input_ids, logits_processor, stopping_criteria, generation_config, **kwargs)
        watch = watch_over(self, generation_config.guard, input_ids, kwargs.get("attention_mask"))
        logits, stopping = WatchedLogits(logits_processor, watch), WatchedStopping(stopping_criteria, watch)
        output = super()._sample(input_ids, logits, stopping, generation_config, **kwargs)
        return GuardedOutput(**output, guard=watch.statistics) if isinstance(output, ModelOutput) else output

    def _assisted_decoding(self, *args: Any, **kwargs: Any) -> Any:
        # Several proposed tokens in one pass: with a learned operator the rows of all would see a G_LM built from
        # all, which is neither the online contract nor a G_LM from the prompt.
        if self.config.gram == "chunked":
            raise ValueError("assisted decoding needs a constant operator: mode 'chunked' takes no token back")
        if self.config.operator == "learned":
            raise ValueError("assisted decoding needs a constant operator: it reads many rows of one pass")
        return super()._assisted_decoding(*args, **kwargs)
