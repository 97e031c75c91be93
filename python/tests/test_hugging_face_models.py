"""Small configurations of Hugging Face's models, with random weights: their training steps as programs learn as in torch, on one
and on eight devices. Nightly tests: `scripts/test.sh --frameworks --nightly`."""

import copy
import pathlib
import re
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
transformers = pytest.importorskip("transformers", reason="needs transformers, which this environment has not")

import shardwise.torch as swt
from test_torch_programs import MESHES, adamw, marked, step_with

TEXT = dict(vocab_size=48, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=16,
            pad_token_id=0, bos_token_id=1, eos_token_id=2)
CAUSAL = dict(TEXT, use_cache=False, num_key_value_heads=2)
ENCODER = dict(TEXT, hidden_dropout_prob=0, attention_probs_dropout_prob=0, type_vocab_size=2)
SEQUENCES = dict(vocab_size=48, d_model=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=0, use_cache=False, dropout=0,
                 attention_dropout=0, activation_dropout=0, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
                 decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24)
PICTURES = dict(image_size=16, patch_size=4, num_channels=3, num_labels=3)
VISION = dict(PICTURES, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, hidden_dropout_prob=0,
              attention_probs_dropout_prob=0)
SPEECH = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=24, conv_dim=[4, 4], conv_stride=[2, 2], conv_kernel=[3, 3],
              num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, hidden_dropout=0, attention_dropout=0,
              activation_dropout=0, feat_proj_dropout=0, layerdrop=0, final_dropout=0, apply_spec_augment=False, classifier_proj_size=8)


@dataclass(frozen=True)
class Case:
    model: str  #: its class
    config: dict[str, Any]
    of: str = "tokens"  #: the kind of its input: see arguments()
    attention: str = "eager"
    experts: str = ""
    parts: dict[str, Any] = field(default_factory=dict)  #: configurations within the configuration
    #: Keywords of the capture: docs/capture_operations.md lists them.
    capture: dict[str, Any] = field(default_factory=dict)


CASES = {
    "gpt2": Case("GPT2LMHeadModel", dict(vocab_size=48, n_positions=16, n_embd=16, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
                                         bos_token_id=1, eos_token_id=2, use_cache=False)),
    "gpt-neo": Case("GPTNeoForCausalLM", dict(vocab_size=48, hidden_size=16, num_layers=2, attention_types=[[["global", "local"], 1]], num_heads=4,
                                              window_size=4, max_position_embeddings=16, use_cache=False, bos_token_id=1, eos_token_id=2)),
    "gpt-neox": Case("GPTNeoXForCausalLM", dict(TEXT, use_cache=False)),
    "gpt-j": Case("GPTJForCausalLM", dict(vocab_size=48, n_positions=16, n_embd=16, n_layer=2, n_head=4, rotary_dim=2, use_cache=False, bos_token_id=1,
                                          eos_token_id=2)),
    "llama": Case("LlamaForCausalLM", CAUSAL, attention="sdpa"),
    "qwen2": Case("Qwen2ForCausalLM", CAUSAL),
    "qwen3": Case("Qwen3ForCausalLM", dict(CAUSAL, head_dim=4), attention="sdpa"),
    "qwen3-moe": Case("Qwen3MoeForCausalLM", dict(CAUSAL, head_dim=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8), experts="grouped_mm"),
    "qwen3-next": Case("Qwen3NextForCausalLM", dict(CAUSAL, head_dim=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
                                                    shared_expert_intermediate_size=8, linear_num_value_heads=4, linear_num_key_heads=2,
                                                    linear_key_head_dim=4, linear_value_head_dim=4), experts="grouped_mm"),
    "mistral": Case("MistralForCausalLM", dict(CAUSAL, sliding_window=4)),
    "mixtral": Case("MixtralForCausalLM", dict(CAUSAL, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True), experts="batched_mm"),
    "gemma": Case("GemmaForCausalLM", dict(CAUSAL, head_dim=4)),
    "gemma2": Case("Gemma2ForCausalLM", dict(CAUSAL, head_dim=4, query_pre_attn_scalar=4, sliding_window=4)),
    "gemma3": Case("Gemma3ForCausalLM", dict(CAUSAL, head_dim=4, query_pre_attn_scalar=4, sliding_window=4)),
    "phi": Case("PhiForCausalLM", dict(CAUSAL, num_key_value_heads=4)),
    "phi3": Case("Phi3ForCausalLM", CAUSAL),
    "opt": Case("OPTForCausalLM", dict(vocab_size=48, hidden_size=16, ffn_dim=24, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=16,
                                       word_embed_proj_dim=16, dropout=0, attention_dropout=0, layerdrop=0, use_cache=False, pad_token_id=0,
                                       bos_token_id=1, eos_token_id=2)),
    "bloom": Case("BloomForCausalLM", dict(vocab_size=48, hidden_size=16, n_layer=2, n_head=4, hidden_dropout=0, attention_dropout=0, use_cache=False,
                                           bos_token_id=1, eos_token_id=2, pad_token_id=0)),
    "falcon": Case("FalconForCausalLM", dict(vocab_size=48, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, use_cache=False, bos_token_id=1,
                                             eos_token_id=2)),
    "stablelm": Case("StableLmForCausalLM", CAUSAL),
    "olmo2": Case("Olmo2ForCausalLM", CAUSAL),
    "olmoe": Case("OlmoeForCausalLM", dict(CAUSAL, num_experts=4, num_experts_per_tok=2), experts="grouped_mm"),
    "cohere": Case("CohereForCausalLM", CAUSAL),
    "glm-4": Case("Glm4ForCausalLM", dict(CAUSAL, head_dim=4)),
    "granite": Case("GraniteForCausalLM", CAUSAL),
    "starcoder2": Case("Starcoder2ForCausalLM", CAUSAL),
    "llama4": Case("Llama4ForCausalLM", dict(CAUSAL, head_dim=4, num_local_experts=2, intermediate_size_mlp=24)),
    "deepseek-v3": Case("DeepseekV3ForCausalLM", dict(CAUSAL, num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
                                                      moe_intermediate_size=8, kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4,
                                                      v_head_dim=4, first_k_dense_replace=1), experts="batched_mm"),
    "gpt-oss": Case("GptOssForCausalLM", dict(CAUSAL, head_dim=4, num_local_experts=4, num_experts_per_tok=2, sliding_window=4), experts="batched_mm"),
    "bert": Case("BertForMaskedLM", ENCODER, attention="sdpa"),
    "roberta": Case("RobertaForMaskedLM", dict(ENCODER, max_position_embeddings=20)),
    "distilbert": Case("DistilBertForMaskedLM", dict(vocab_size=48, dim=16, hidden_dim=24, n_layers=2, n_heads=4, max_position_embeddings=16, dropout=0,
                                                     attention_dropout=0, pad_token_id=0)),
    "electra": Case("ElectraForMaskedLM", dict(ENCODER, embedding_size=16)),
    "albert": Case("AlbertForMaskedLM", dict(ENCODER, embedding_size=8)),
    "t5": Case("T5ForConditionalGeneration", dict(vocab_size=48, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4, dropout_rate=0,
                                                  decoder_start_token_id=0, pad_token_id=0, use_cache=False)),
    "bart": Case("BartForConditionalGeneration", dict(SEQUENCES, max_position_embeddings=16, forced_eos_token_id=None)),
    "mbart": Case("MBartForConditionalGeneration", dict(SEQUENCES, max_position_embeddings=16, forced_eos_token_id=None)),
    "pegasus": Case("PegasusForConditionalGeneration", dict(SEQUENCES, max_position_embeddings=16, forced_eos_token_id=None)),
    "whisper": Case("WhisperForConditionalGeneration", dict(SEQUENCES, num_mel_bins=6, max_source_positions=8, max_target_positions=16), of="audio"),
    "vit": Case("ViTForImageClassification", VISION, of="images"),
    "deit": Case("DeiTForImageClassification", VISION, of="images", attention="sdpa"),
    "clip": Case("CLIPModel", dict(projection_dim=8), of="both",
                 parts=dict(text_config=dict(TEXT), vision_config=dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                                                                       image_size=16, patch_size=4))),
    "resnet": Case("ResNetForImageClassification", dict(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=3),
                   of="images"),
    "convnext": Case("ConvNextForImageClassification", dict(hidden_sizes=[4, 8], depths=[1, 1], num_stages=2, patch_size=2, num_labels=3,
                                                            drop_path_rate=0.0), of="images"),
    "swin": Case("SwinForImageClassification", dict(PICTURES, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=2, drop_path_rate=0.0),
                 of="images"),
    "mobilevit": Case("MobileViTForImageClassification", dict(image_size=32, num_labels=3, hidden_sizes=[8, 8, 8], neck_hidden_sizes=[4, 4, 4, 4, 8, 8, 8],
                                                              hidden_dropout_prob=0, classifier_dropout_prob=0), of="large images"),
    "wav2vec2": Case("Wav2Vec2ForSequenceClassification", dict(SPEECH, num_labels=3), of="waves"),
    "mamba": Case("MambaForCausalLM", dict(vocab_size=48, hidden_size=16, state_size=4, num_hidden_layers=2, use_cache=False, pad_token_id=0, bos_token_id=1,
                                           eos_token_id=2, use_mambapy=False)),
    "longformer": Case("LongformerForMaskedLM", dict(ENCODER, attention_window=[4, 4], max_position_embeddings=20)),
    "led": Case("LEDForConditionalGeneration", dict(SEQUENCES, attention_window=[4], max_encoder_position_embeddings=16, max_decoder_position_embeddings=16)),
    "hubert": Case("HubertForCTC", dict(SPEECH, vocab_size=32, ctc_zero_infinity=True), of="speech",
                   capture=dict(assume=["modeling_hubert.py:labels.max() >= self.config.vocab_size"])),
    "llava": Case("LlavaForConditionalGeneration", dict(image_token_index=40), of="pictures in text",
                  parts=dict(text_config=dict(CAUSAL, model_type="llama", max_position_embeddings=32),
                              vision_config=dict(VISION, model_type="clip_vision_model")),
                  capture=dict(assume=["modeling_llava.py:torch_compilable_check("])),
    "qwen2-vl": Case("Qwen2VLForConditionalGeneration", dict(image_token_id=40, vision_start_token_id=41, vision_end_token_id=42, video_token_id=43),
                     of="grids in text",
                     parts=dict(text_config=dict(CAUSAL, rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[1, 1, 0])),
                                vision_config=dict(depth=2, embed_dim=16, hidden_size=16, num_heads=4, mlp_ratio=2, patch_size=4, spatial_merge_size=2,
                                                   temporal_patch_size=2, in_channels=3)),
                     capture=dict(static=["3", "4"],   # image_grid_thw, mm_token_type_ids
                                   assume=["modeling_qwen2_vl.py:torch_compilable_check("])),
}


def build(case: Case) -> Any:
    torch.manual_seed(4)
    model_class = getattr(transformers, case.model)
    config = model_class.config_class(**case.config, **case.parts)
    config._attn_implementation = case.attention
    if case.experts:
        config._experts_implementation = case.experts
    return model_class(config).train()


def arguments(of: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(3, 48, (8, 8), generator=generator)
    images = torch.randn(8, 3, 16, 16, generator=generator)
    labels = torch.randint(0, 3, (8,), generator=generator)
    audio = torch.randn(8, 6, 16, generator=generator)
    large, waves = torch.randn(8, 3, 32, 32, generator=generator), torch.randn(8, 64, generator=generator)
    pictures, grids = (torch.cat([tokens[:, :2] % 40, torch.full((8, count), 40), tokens[:, 2:] % 40], 1) for count in (16, 4))
    patches = torch.randn(8 * 16, 3 * 2 * 4 * 4, generator=generator)
    grid = {"input_ids": grids, "labels": grids, "pixel_values": patches, "image_grid_thw": torch.tensor([[1, 4, 4]] * 8),
            "mm_token_type_ids": (grids == 40).long()}
    return {"pictures in text": {"input_ids": pictures, "labels": pictures, "pixel_values": images}, "grids in text": grid,
            "speech": {"input_values": waves, "labels": torch.randint(1, 30, (8, 4), generator=generator)}, "tokens": {"input_ids": tokens, "labels": tokens}, "images": {"pixel_values": images, "labels": labels},
            "large images": {"pixel_values": large, "labels": labels}, "waves": {"input_values": waves, "labels": labels},
            "audio": {"input_features": audio, "labels": tokens}, "both": {"input_ids": tokens, "pixel_values": images}}[of]


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_a_model_learns_as_in_torch(name):
    case = CASES[name]
    given = arguments(case.of)
    options = {"return_loss": True} if case.of == "both" else {}

    def loss_of(model, *tensors):
        return model(**dict(zip(given, tensors, strict=True)), **options).loss

    theirs, ours = build(case), build(case)
    torch_step = step_with(theirs, adamw(theirs), loss_of)
    losses = [torch_step(*given.values()).item() for _ in range(3)]
    optimizer, before = adamw(ours), copy.deepcopy(ours.state_dict())
    captured = swt.capture(step_with(ours, optimizer, loss_of), *given.values(), **case.capture)
    for kind, mesh in MESHES.items():
        ours.load_state_dict(before)
        optimizer.state.clear()
        plan = marked(copy.copy(captured), kind).plan(mesh)
        found = [plan.run(*given.values()).item() for _ in range(3)]
        assert found == pytest.approx(losses, rel=1e-5), kind
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-4, atol=1e-5, msg=lambda told: f"{kind}: {told}")


def test_docs_name_these_models():
    text = (pathlib.Path(__file__).parents[2] / "docs" / "capture_operations.md").read_text()
    told = text.partition("with data, weights or products cut: ")[2].partition(" (`scripts/test.sh")[0]
    names = [re.sub(r"[^a-z0-9]", "", name.lower()) for name in re.split(r",\s+|\s+and\s+", told)]
    assert names == [name.replace("-", "") for name in CASES]
