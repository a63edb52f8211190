from __future__ import annotations

from typing import Any

import pytest
import torch

from outrider.api import LayerInfo, ModelError, NativeAttention, PluginError
from outrider.models.attention_interface import bindings_of
from outrider.models.hidden_states import HiddenStateCapture
from outrider.models.routing import RoutedModel

LENGTHS = [9, 4, 1]
ARCHITECTURES = [
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "mixtral",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
    "phi3",
    "gpt2",
    "olmo2",
    "starcoder2",
    "smollm3",
    "granite",
    "opt",
    "deepseek_v3",
]
NO_CACHE = {"use_cache": False}


def route(
    model: torch.nn.Module, *backends: Any, name: str = "", dummy_inputs: Any = NO_CACHE
) -> RoutedModel:
    return RoutedModel.route(model, backends, name, dummy_inputs, torch.device("cpu"), torch.float32)


def flat_batch(seed: int = 0) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Sequences `[n]`, and all of them as one row of ids and positions `[1, T]`."""
    generator = torch.Generator().manual_seed(seed)
    sequences = [torch.randint(3, 64, (n,), generator=generator) for n in LENGTHS]
    positions = torch.cat([torch.arange(n) for n in LENGTHS])
    return sequences, torch.cat(sequences)[None], positions[None]


def eager_logits(model: Any, sequences: list[torch.Tensor]) -> torch.Tensor:
    """`[T, V]`, each sequence alone through the model's own attention."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = [model(input_ids=ids[None], use_cache=False).logits[0] for ids in sequences]
    model.set_attn_implementation("outrider")
    return torch.cat(logits)


def routed_logits(
    routed: RoutedModel, ids: torch.Tensor, positions: torch.Tensor, **inputs: Any
) -> torch.Tensor:
    metadata = dict.fromkeys(routed.backends, LENGTHS)
    output = routed.forward(metadata, input_ids=ids, position_ids=positions, use_cache=False, **inputs)
    return output.logits[0]


def close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(actual, expected, rtol=0, atol=2e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_flat_batch_gives_the_logits_of_each_sequence_alone(kit: Any, architecture: str) -> None:
    model = kit.build(architecture)
    sequences, ids, positions = flat_batch()
    expected = eager_logits(model, sequences)
    routed = route(model, kit.SequenceBackend())
    assert len(routed.layers) == 2
    assert close(routed_logits(routed, ids, positions), expected)


def test_only_the_asked_rows_get_logits_with_the_scaling_of_the_architecture(kit: Any) -> None:
    model = kit.build("granite")
    sequences, ids, positions = flat_batch()
    rows = torch.tensor([2, 8, 12, 13])
    expected = eager_logits(model, sequences)[rows]
    logits = routed_logits(route(model, kit.SequenceBackend()), ids, positions, logits_to_keep=rows)
    assert logits.shape == (4, 64)
    assert close(logits, expected)


def test_a_layer_that_is_also_a_c_function_says_so_inside_a_forward(kit: Any) -> None:
    native = NativeAttention(function=1, layer=2, form="any")

    class NativeLayer(kit.SequenceLayer):
        native: NativeAttention | None = None  # known once the cache is bound

        def native_step(self, metadata: list[int]) -> int:
            return len(metadata)

    class NativeBackend(kit.SequenceBackend):
        def claim_layer(self, layer: LayerInfo) -> Any:
            return None if layer.attention is None else NativeLayer(layer)

    seen = []
    for backend in (kit.SequenceBackend(), NativeBackend()):
        routed = route(kit.build("llama"), backend)
        routed.layers[0].impl.native = native  # type: ignore[attr-defined]
        routed.layers[0].module.register_forward_pre_hook(
            lambda module, inputs: seen.append(bindings_of(module).partners[module])
        )
        routed_logits(routed, *flat_batch()[1:])
    plain, bound = seen
    assert not hasattr(plain, "native_step")
    assert (bound.native, bound.native_step()) == (native, len(LENGTHS))


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("llama", [(4, 2, 16, 16, None, None, False)] * 2),
        ("mistral", [(4, 2, 16, 16, 5, None, False)] * 2),
        ("gemma2", [(4, 2, 16, 16, 5, 50.0, False), (4, 2, 16, 16, None, 50.0, False)]),
        ("gpt_oss", [(4, 2, 16, 16, 5, None, True), (4, 2, 16, 16, None, None, True)]),
        ("deepseek_v3", [(4, 4, 24, 12, None, None, False)] * 2),
    ],
)
def test_layers_are_discovered_with_their_shape(kit: Any, architecture: str, expected: list[Any]) -> None:
    shapes = [layer.attention for layer in route(kit.build(architecture), kit.SequenceBackend()).layers]
    seen = [
        (
            shape.num_heads,
            shape.num_kv_heads,
            shape.key_size,
            shape.value_size,
            shape.sliding_window,
            shape.softcap,
            shape.sinks is not None,
        )
        for shape in shapes
        if shape is not None
    ]
    assert seen == expected


def test_scaling_and_sinks_are_those_of_the_layer(kit: Any) -> None:
    gemma = route(kit.build("gemma2"), kit.SequenceBackend()).layers[0].attention
    assert gemma is not None
    assert gemma.scaling == 8**-0.5
    model = kit.build("gpt_oss")
    oss = route(model, kit.SequenceBackend()).layers[1].attention
    assert oss is not None
    assert torch.equal(oss.sinks, model.model.layers[1].self_attn.sinks)


def test_layers_come_in_order_with_qualified_names(kit: Any) -> None:
    routed = route(kit.build("llama"), kit.SequenceBackend(), name="target")
    assert [layer.name for layer in routed.layers] == [
        "target.model.layers.0.self_attn",
        "target.model.layers.1.self_attn",
    ]
    assert routed.backends == {"sequences"}


def test_backends_are_asked_in_turn_and_may_share_a_model(kit: Any) -> None:
    first = kit.SequenceBackend("first", lambda layer: layer.attention is not None and ".0." in layer.name)
    second = kit.SequenceBackend("second")
    model = kit.build("llama")
    sequences, ids, positions = flat_batch()
    expected = eager_logits(model, sequences)
    routed = route(model, first, second)
    assert [layer.backend for layer in routed.layers] == ["first", "second"]
    assert close(routed_logits(routed, ids, positions), expected)


def test_a_layer_that_nobody_claims_is_an_error_with_both_sides_facts(kit: Any) -> None:
    backend = kit.SequenceBackend("windowless", lambda layer: False)
    with pytest.raises(PluginError) as caught:
        route(kit.build("mistral"), backend, name="target")
    message = str(caught.value)
    for fact in (
        "target.model.layers.0.self_attn",
        "MistralAttention",
        "4 query heads on 2 key-value heads",
        "key size 16",
        "sliding window 5",
        "windowless (outrider-sequences 1.0)",
        "outrider.attention_backends",
        "outrider plugins",
    ):
        assert fact in message


def test_without_any_backend_the_error_says_that_none_is_installed(kit: Any) -> None:
    with pytest.raises(PluginError, match="no attention backend is installed or selected"):
        route(kit.build("llama"))


def test_attention_outside_a_routed_forward_is_an_error(kit: Any) -> None:
    model = kit.build("llama")
    _, ids, positions = flat_batch()
    with pytest.raises(ModelError, match="outside a routed forward"):
        model(input_ids=ids)
    routed = route(model, kit.SequenceBackend())
    routed_logits(routed, ids, positions)
    with pytest.raises(ModelError, match="outside a routed forward"):
        model(input_ids=ids)


def test_a_forward_that_raised_leaves_nothing_behind(kit: Any) -> None:
    model = kit.build("llama")
    sequences, ids, positions = flat_batch()
    expected = eager_logits(model, sequences)
    routed = route(model, kit.SequenceBackend())
    with pytest.raises(IndexError):
        routed_logits(routed, ids + 64, positions)
    assert close(routed_logits(routed, ids, positions), expected)


def test_missing_metadata_is_named(kit: Any) -> None:
    routed = route(kit.build("llama"), kit.SequenceBackend())
    with pytest.raises(ModelError, match="metadata of backend 'sequences'"):
        routed.forward({})


def test_a_forward_inside_a_forward_of_the_same_model_is_refused(kit: Any) -> None:
    routed = route(kit.build("llama"), kit.SequenceBackend())
    _, ids, positions = flat_batch()
    handle = routed.module.model.norm.register_forward_hook(  # type: ignore[union-attr]
        lambda *_: routed_logits(routed, ids, positions)
    )
    with pytest.raises(ModelError, match="already inside a forward"):
        routed_logits(routed, ids, positions)
    handle.remove()


def test_models_in_one_process_do_not_disturb_each_other(kit: Any) -> None:
    models = [kit.build("llama", seed=seed) for seed in (1, 2)]
    sequences, ids, positions = flat_batch()
    expected = [eager_logits(model, sequences) for model in models]
    routed = [route(model, kit.SequenceBackend()) for model in models]
    inner: list[torch.Tensor] = []
    # The second model runs in the middle of the first one's forward, as a drafter of its own would.
    handle = (
        routed[0]
        .module.model.layers[1]
        .register_forward_pre_hook(  # type: ignore[union-attr,index]
            lambda *_: inner.append(routed_logits(routed[1], ids, positions))
        )
    )
    outer = routed_logits(routed[0], ids, positions)
    handle.remove()
    assert close(outer, expected[0])
    assert close(inner[0], expected[1])


def test_one_module_may_be_routed_twice_with_layers_of_its_own_each_time(kit: Any) -> None:
    model = kit.build("llama")
    sequences, ids, positions = flat_batch()
    expected = eager_logits(model, sequences)
    first, second = (route(model, kit.SequenceBackend()) for _ in range(2))
    assert first.layers[0].impl is not second.layers[0].impl
    for routed in (first, second, first):
        assert close(routed_logits(routed, ids, positions), expected)
    assert [len(routed.layers[0].impl.calls) for routed in (first, second)] == [2, 1]  # type: ignore[attr-defined]


def test_hidden_states_are_captured_only_when_asked(kit: Any) -> None:
    model = kit.build("gemma2")
    sequences, ids, positions = flat_batch()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        alone = [model(input_ids=s[None], use_cache=False, output_hidden_states=True) for s in sequences]
        last = torch.cat([model.model(input_ids=s[None], use_cache=False)[0][0] for s in sequences])
    model.set_attn_implementation("outrider")
    routed = route(model, kit.SequenceBackend())
    capture = HiddenStateCapture(model, hidden_states=True, aux_hidden_layers=(1, 0))
    routed_logits(routed, ids, positions, capture=capture, logits_to_keep=torch.tensor([3]))
    assert capture.hidden_states is not None
    assert close(capture.hidden_states, last)
    for captured, layer in zip(capture.aux_hidden_states, (1, 0), strict=True):
        assert close(captured, torch.cat([output.hidden_states[layer][0] for output in alone]))
    before = capture.hidden_states
    routed_logits(routed, ids, positions)
    assert capture.hidden_states is before


def test_the_output_of_the_last_layer_can_be_captured_before_the_final_norm(kit: Any) -> None:
    model = kit.build("llama")
    _, ids, positions = flat_batch()
    routed = route(model, kit.SequenceBackend())
    capture = HiddenStateCapture(model, hidden_states=True, aux_hidden_layers=(2,))
    routed_logits(routed, ids, positions, capture=capture)
    assert capture.hidden_states is not None
    assert torch.equal(model.model.norm(capture.aux_hidden_states[0]), capture.hidden_states)


def test_hidden_states_of_a_layer_that_does_not_exist_are_refused(kit: Any) -> None:
    with pytest.raises(ModelError, match=r"layer 3 .* layers 0\.\.2"):
        HiddenStateCapture(kit.build("llama"), aux_hidden_layers=(3,))
