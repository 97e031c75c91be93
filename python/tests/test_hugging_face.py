"""The model of a training checkpoint, exported so that transformers opens it."""

import os
import subprocess

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
transformers = pytest.importorskip("transformers", reason="needs transformers, which this environment has not")

import shardwise as sw
import shardwise.torch as swt

SIZES = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def models():
    torch.manual_seed(3)
    yield "tied", transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, tie_word_embeddings=True))
    yield "untied", transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, tie_word_embeddings=False))
    yield "gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2))


@pytest.mark.parametrize("name, model", list(models()), ids=lambda value: value if isinstance(value, str) else "")
def test_from_pretrained_opens_the_model_of_a_training_checkpoint(tmp_path, name, model):
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.arange(8).reshape(1, 8)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    config = tmp_path / "config"
    model.config.save_pretrained(config)
    model.generation_config.save_pretrained(config)
    step = tmp_path / "run" / "step-00000001"
    swt.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 1})

    command = os.path.join(os.path.dirname(sw.__file__), "bin", "shardwise")
    subprocess.run([command, "export", step, tmp_path / "shell", "--strip-prefix", "model.", "--config-from", config, "--max-shard",
                    "10KB"], check=True, capture_output=True)
    prefix = "model." if any(key.startswith("model.") for key in sw.open(step)) else "model/"
    sw.export_model(step, tmp_path / "python", names=f"{prefix}*", rename={f"{prefix}*": "*"}, config_from=config)
    subprocess.run([command, "export", step, tmp_path / "small", "--strip-prefix", "model.", "--config-from", config, "--cast", "bf16"],
                   check=True, capture_output=True)
    small = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "small", dtype="auto")
    assert small.dtype == torch.bfloat16
    for key, value in model.state_dict().items():
        assert torch.equal(small.state_dict()[key], value.bfloat16()), key
    model.eval()
    for folder in (tmp_path / "shell", tmp_path / "python"):
        again, told = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not told["missing_keys"] and not told["unexpected_keys"], (folder, told)
        for key, value in model.state_dict().items():
            assert torch.equal(again.state_dict()[key], value), key
        assert torch.equal(again.eval()(input_ids=tokens).logits, model(input_ids=tokens).logits)
