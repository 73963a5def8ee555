"""Batch gradients as a Gram matrix, from the gradients themselves."""

import torch

from fedbridge.advice.batches import BatchGram, Stratum


def gram_of(sites, blocks):
    """Inner products of whole batch gradients (B, m), the target's first, a stratum per site."""
    rows = torch.cat([site.to(torch.float64) for site in sites])
    gram = torch.stack([rows[:, part] @ rows[:, part].T for part in blocks.slices()])
    return BatchGram(gram, tuple(Stratum(k, len(site)) for k, site in enumerate(sites)))
