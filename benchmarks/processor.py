"""What a table of speeds was measured on."""

import os
import platform

import torch


def processor() -> str:
    """Cores and name of the processor, which decides by which library PyTorch and we multiply (docs/speed.md)."""
    name = torch.cpu.get_capabilities().get("cpu_name", "unnamed")
    return f"{os.cpu_count()} cores of {platform.machine()} ({name})"
