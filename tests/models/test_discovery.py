"""What can not run as a flat batch is refused at load, naming the module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AttentionInterface, PretrainedConfig

from outrider.api import LayerInfo, ModelError, PluginError, StateCacheSpec
from outrider.models.routing import RoutedModel
from outrider.testing.recurrent import ToyRecurrentConfig, ToyRecurrentForCausalLM
from outrider.testing.recurrent_backend import RequestRows, ToyRecurrentBackend

HYBRID: dict[str, Any] = {
    "conv_L_cache": 3,
    "layer_types": ["conv", "full_attention"],
    "block_auto_adjust_ff_dim": False,
}


def route(model: torch.nn.Module, *backends: Any, dummy_inputs: Any = None) -> RoutedModel:
    inputs = {"use_cache": False} if dummy_inputs is None else dummy_inputs
    return RoutedModel.route(model, backends, "", inputs, torch.device("cpu"), torch.float32)


class SelfAttention(torch.nn.Module):
    """A toy that calls the attention interface with whatever keywords it is given."""

    is_causal = True

    def __init__(self, config: Any, **keywords: Any) -> None:
        super().__init__()
        self.config = config
        self.keywords = keywords

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        heads = rows.unflatten(-1, (2, 4)).transpose(1, 2)
        attend = AttentionInterface().get_interface(self.config._attn_implementation, None)
        return attend(self, heads, heads, heads, None, **self.keywords)[0].flatten(-2)


class Toy(torch.nn.Module):
    """Embeds ids and passes them through the given modules, in order."""

    def __init__(self, *modules: torch.nn.Module) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 8)
        self.layers = torch.nn.ModuleList(modules)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        rows = self.embedding(input_ids)
        for module in self.layers:
            rows = rows + module(rows)
        return rows


def our_attention(**keywords: Any) -> SelfAttention:
    return SelfAttention(PretrainedConfig(attn_implementation="outrider"), **keywords)


class AddsRowNumber(torch.nn.Module):
    """Positions that are not `position_ids`."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + torch.arange(rows.shape[1])[:, None]


class LooksBack(torch.nn.Module):
    """A convolution over rows."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(rows, (0, 0, 1, 0))[:, :-1]


def test_keywords_reach_the_backend_and_unknown_ones_keep_it_from_claiming(kit: Any) -> None:
    backend = kit.SequenceBackend()
    with pytest.raises(PluginError, match="further keywords block_mask"):
        route(Toy(our_attention(block_mask=3)), backend, dummy_inputs={})
    (shape,) = [layer.attention for layer in backend.offered if layer.attention is not None]
    assert shape.unknown == {"block_mask": 3}


def test_keywords_that_do_not_matter_are_not_unknown(kit: Any) -> None:
    ignored = {"dropout": 0.0, "position_ids": torch.arange(4), "use_cache": False, "output_attentions": None}
    (layer,) = route(Toy(our_attention(**ignored, odd=None)), kit.SequenceBackend(), dummy_inputs={}).layers
    assert layer.attention is not None
    assert layer.attention.unknown == {}
    assert layer.attention.scaling == 0.5


def test_attention_that_is_not_causal_is_refused(kit: Any) -> None:
    with pytest.raises(ModelError, match=r"'layers.0' is not causal"):
        route(Toy(our_attention(is_causal=False)), kit.SequenceBackend(), dummy_inputs={})


def test_an_encoder_is_refused(kit: Any) -> None:
    shape = {**kit.COMMON, "type_vocab_size": 2}
    with pytest.raises(ModelError, match="not causal"):
        route(kit.build("bert", shape), kit.SequenceBackend())


def test_cross_attention_is_refused(kit: Any) -> None:
    class Cross(SelfAttention):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            heads = rows.unflatten(-1, (2, 4)).transpose(1, 2)
            attend = AttentionInterface().get_interface(self.config._attn_implementation, None)
            return attend(self, heads, heads[:, :, :2], heads[:, :, :2], None)[0].flatten(-2)

    with pytest.raises(ModelError, match="from 4 rows to 2: cross-attention"):
        route(Toy(Cross(our_attention().config)), kit.SequenceBackend(), dummy_inputs={})


def test_a_layer_that_is_called_twice_is_refused(kit: Any) -> None:
    shared = our_attention()
    with pytest.raises(ModelError, match=r"'layers.0' is called 2 times"):
        route(Toy(shared, shared), kit.SequenceBackend(), dummy_inputs={})


def test_a_mask_that_says_more_than_the_keywords_is_refused(kit: Any) -> None:
    chunked = {
        **kit.COMMON,
        "intermediate_size_mlp": 48,
        "num_local_experts": 2,
        "attention_chunk_size": 8192,
        "layer_types": ["chunked_attention", "full_attention"],
    }
    with pytest.raises(ModelError, match="relies on an attention mask: its call says causal with no window"):
        route(kit.build("llama4_text", chunked), kit.SequenceBackend())


@pytest.mark.parametrize("module", [AddsRowNumber(), LooksBack()])
def test_rows_that_depend_on_their_neighbours_are_refused(kit: Any, module: torch.nn.Module) -> None:
    with pytest.raises(
        ModelError, match=rf"module 'layers.1' \({type(module).__name__}\) a row depends on other"
    ):
        route(Toy(our_attention(), module), kit.SequenceBackend(), dummy_inputs={})


def test_attention_that_bypasses_the_interface_is_refused(kit: Any) -> None:
    plain = kit.build("llama")
    plain.set_attn_implementation("sdpa")
    with pytest.raises(ModelError, match=r"'model.layers.0.self_attn' \(LlamaAttention\)"):
        route(plain, kit.SequenceBackend())


def test_a_hybrid_model_needs_somebody_who_claims_its_convolutions(kit: Any) -> None:
    model = kit.build("lfm2", {**kit.COMMON, **HYBRID})
    with pytest.raises(
        ModelError, match=r"'model.layers.0.conv' \(Lfm2ShortConv\) a row depends on other rows"
    ):
        route(model, kit.SequenceBackend())


class WholeModule:
    """Computes a claimed module with the module's own code, from no earlier state."""

    cache_spec = StateCacheSpec(tensors={}, rewindable=True)

    def __init__(self, layer: LayerInfo) -> None:
        self._layer = layer

    def bind_cache(self, cache: Any) -> None: ...

    def forward(self, lengths: list[int], *args: Any, **kwargs: Any) -> Any:
        rows = args[0] if args else kwargs.pop("hidden_states")
        module = self._layer.module
        return torch.cat([type(module).forward(module, part, **kwargs) for part in rows.split(lengths, 1)], 1)


class ModuleBackend:
    """Claims modules by class name."""

    name, distribution = "modules", "outrider-modules 1.0"

    def __init__(self, class_name: str) -> None:
        self.offered: list[str] = []
        self._class_name = class_name

    def claim_layer(self, layer: LayerInfo) -> WholeModule | None:
        self.offered.append(layer.name)
        claims = layer.attention is None and type(layer.module).__name__ == self._class_name
        return WholeModule(layer) if claims else None


def test_a_claimed_module_is_computed_by_its_backend_beside_attention(kit: Any) -> None:
    model = kit.build("lfm2", {**kit.COMMON, **HYBRID})
    model.set_attn_implementation("eager")
    lengths = [5, 3]
    sequences = [torch.arange(3, 8), torch.arange(9, 12)]
    with torch.no_grad():
        expected = torch.cat([model(input_ids=ids[None], use_cache=False).logits[0] for ids in sequences])
    model.set_attn_implementation("outrider")
    routed = route(model, ModuleBackend("Lfm2ShortConv"), kit.SequenceBackend())
    assert [(layer.name, layer.backend) for layer in routed.layers] == [
        ("model.layers.0.conv", "modules"),
        ("model.layers.1.self_attn", "sequences"),
    ]
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    output = routed.forward(
        {"modules": lengths, "sequences": lengths},
        input_ids=torch.cat(sequences)[None],
        position_ids=positions,
        use_cache=False,
    )
    assert torch.allclose(output.logits[0], expected, rtol=0, atol=1e-4)
    assert "forward" not in model.model.layers[0].conv.__dict__


def test_modules_are_offered_outermost_first_and_nothing_inside_a_claimed_one(kit: Any) -> None:
    backend = ModuleBackend("LlamaDecoderLayer")
    routed = route(kit.build("llama"), backend)
    assert [layer.name for layer in routed.layers] == ["model.layers.0", "model.layers.1"]
    assert backend.offered[:3] == ["", "model", "model.embed_tokens"]
    assert not [name for name in backend.offered if name.startswith("model.layers.0.")]


def test_a_whole_model_may_be_claimed() -> None:
    backend = ModuleBackend("Toy")
    routed = RoutedModel.route(Toy(), [backend], "draft", {}, torch.device("cpu"), torch.float32)
    assert [layer.name for layer in routed.layers] == ["draft"]


def test_the_recurrent_toy_runs_on_claimed_mixers_alone() -> None:
    model = ToyRecurrentForCausalLM(ToyRecurrentConfig()).eval()

    class Backend:
        name, distribution = "toy", "outrider"
        claim_layer = ToyRecurrentBackend().claim_layer

    routed = route(model, Backend())
    (layer,) = routed.layers
    assert (layer.name, layer.attention) == ("model.layers.0.mixer", None)
    layer.impl.bind_cache({"state": torch.zeros(2, dtype=torch.int64)})
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    metadata = (RequestRows(0, 3, None, (0,)), RequestRows(3, 5, None, (1,)))
    logits = routed.forward({"toy": metadata}, input_ids=ids).logits[0]
    assert torch.equal(logits, torch.cat([model(ids[:, :3]).logits[0], model(ids[:, 3:]).logits[0]]))


def test_a_model_without_anything_to_claim_is_an_error(kit: Any) -> None:
    with pytest.raises(
        PluginError, match=r"no layer calls the transformers attention interface .* asked: sequences"
    ):
        route(Toy(torch.nn.Identity()), kit.SequenceBackend(), dummy_inputs={})


def test_an_exception_in_the_dummy_forward_says_so(kit: Any) -> None:
    with pytest.raises(ModelError, match=r"Toy: the dummy forward .* failed with TypeError: .*bogus"):
        route(Toy(our_attention()), kit.SequenceBackend(), dummy_inputs={"bogus": 1})


def test_discovery_leaves_the_model_as_it_was(kit: Any) -> None:
    model = kit.build("llama")
    before = {name: set(module.__dict__) for name, module in model.named_modules()}
    route(model, kit.SequenceBackend())
    assert {name: set(module.__dict__) for name, module in model.named_modules()} == before
    assert model.config._attn_implementation == "outrider"
    assert not any(module._forward_hooks for module in model.modules())
