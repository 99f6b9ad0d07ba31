"""Models on the device that a person named."""

import torch

from plga.model.modeling import PldrForCausalLM


def on_device(model: PldrForCausalLM, device: str) -> PldrForCausalLM:
    """The model on a device, such as ``cpu`` or ``cuda:0``.

    Raises:
        ValueError: no such device here.
    """
    try:
        if torch.device(device).type == "meta":
            raise RuntimeError("it holds no numbers")
        model.to(torch.device(device))
    except (RuntimeError, AssertionError) as error:  # PyTorch built without CUDA asserts
        raise ValueError(f"device is {device!r}, which is not here ({str(error).splitlines()[0]})") from error
    return model
