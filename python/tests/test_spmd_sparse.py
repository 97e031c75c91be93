"""Sparse gradients on the emulated device: refused where they would begin."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import shardwise as sw
import shardwise.torch.spmd as spmd


@pytest.mark.parametrize("kind", [torch.nn.Embedding, torch.nn.EmbeddingBag])
def test_sparse_embeddings_are_refused_by_name(kind):
    device = spmd.xla_device()
    table = kind(10, 4, sparse=True).to(device)
    ids = torch.tensor([[1, 2, 3]], device=device)
    with pytest.raises(sw.Unsupported, match="found sparse=True, .* needed sparse=False"):
        table(ids)
    with torch.no_grad():  # without a gradient nothing is sparse
        found = table(ids).cpu()
    assert torch.equal(found, table.cpu()(ids.cpu()).detach())
    functional = torch.nn.functional.embedding if kind is torch.nn.Embedding else torch.nn.functional.embedding_bag
    with pytest.raises(sw.Unsupported, match="sparse=False"):
        functional(ids, torch.zeros(10, 4, device=device, requires_grad=True), sparse=True)
    dense = kind(10, 4).to(device)
    dense(ids).sum().backward()
    assert dense.weight.grad.cpu().sum() == (12 if kind is torch.nn.Embedding else 4)
