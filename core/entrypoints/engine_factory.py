"""Builds an engine: plugins, model, proposer, routing, caches, runner, scheduler, in that order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from prometheus_client import REGISTRY

from ..api import ProposerCapabilities
from ..config import EngineConfig, SpeculativeConfig
from ..engine.core import EngineCore
from ..engine.draft_adaptive import AdaptiveDrafts
from ..engine.draft_cost import VerifyCost
from ..engine.draft_fixed import FixedDrafts
from ..engine.draft_limits import DraftLimits
from ..engine.draft_policy import DraftPolicy
from ..engine.drafts import Drafts
from ..engine.kv_cache import KVCacheManager
from ..engine.scheduler import Scheduler
from ..metrics.log_line import PeriodicLogLine
from ..metrics.prometheus import export_stats
from ..metrics.stats import EngineStats
from ..models.cache import CachePlan, allocate_caches, plan_caches
from ..models.capabilities import check_capabilities
from ..models.fuse import fuse_layers
from ..models.hidden_states import HiddenStateCapture
from ..models.load import LoadedModel, load_model
from ..models.packed_layers import pack_layers
from ..models.routing import RoutedModel
from ..models.target import Target
from ..plugins import PluginManager
from ..runner.draft_model import RoutedDraftModel
from ..runner.drafting import Drafting
from ..runner.input_batch import InputBatch
from ..runner.model_runner import ModelRunner
from ..runner.warm_up import measure_verify_cost, warm_up
from .compile_progress import compile_progress


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine and what it was built from.

    Attributes:
        caches: cache tensors by layer name.
    """

    core: EngineCore
    loaded: LoadedModel
    caches: Mapping[str, Mapping[str, torch.Tensor]]
    plugins: PluginManager
    log_line: PeriodicLogLine


def build_engine(config: EngineConfig) -> Engine:
    """Load everything that `config` names.

    Raises:
        ConfigError, ModelError, PluginError: something is unknown, broken, or does not fit together.
    """
    with compile_progress():
        return _build(config)


def _build(config: EngineConfig) -> Engine:
    plugins = PluginManager.load(config)
    loaded = load_model(config.model)
    capabilities, draft_models = _load_proposer(config, plugins, loaded)
    target = _route(loaded.model, "", {"use_cache": False}, plugins, loaded)
    for draft in draft_models:
        draft.route(
            _route(draft.module, draft.name, draft.dummy_inputs, plugins, loaded),
            plugins.backends,
            loaded.device,
        )
    num_speculative_tokens = _num_speculative_tokens(config, capabilities)
    layers = [*target.layers, *(layer for draft in draft_models for layer in draft.layers)]
    cache_plan = plan_caches(
        layers,
        block_size=config.cache.block_size,
        num_kv_blocks=config.cache.num_kv_blocks,
        kv_cache_memory_gib=config.cache.kv_cache_memory_gib,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=loaded.max_model_len,
        num_speculative_tokens=num_speculative_tokens,
    )
    caches = allocate_caches(layers, cache_plan, loaded.device)
    draft_limits = DraftLimits(num_speculative_tokens, capabilities)
    scheduler = _build_scheduler(config, loaded, cache_plan, draft_limits, capabilities)
    batch = InputBatch(
        config.scheduler.max_num_seqs, scheduler.max_len, cache_plan.block_size, num_speculative_tokens
    )
    runner = _build_runner(config, plugins, loaded, target, batch, capabilities)
    num_drafts = min(num_speculative_tokens, scheduler.max_len - 2)
    warm_up(runner, batch, num_drafts=num_drafts)
    if config.speculative is not None:
        scheduler.drafts.policy = _build_draft_policy(
            config.speculative,
            num_speculative_tokens,
            capabilities,
            lambda: measure_verify_cost(
                runner, batch, num_drafts=num_drafts, num_blocks=cache_plan.num_blocks
            ),
        )
    if plugins.proposer is not None:
        extra_rows = capabilities.draft_slots * config.scheduler.max_num_seqs
        plugins.proposer.dummy_run(config.scheduler.max_num_batched_tokens + extra_rows)
    stats = EngineStats()

    def count_plugin_error() -> None:
        stats.num_plugin_errors += 1

    plugins.tell_lifecycle_errors(count_plugin_error)
    core = EngineCore(
        scheduler,
        runner,
        plugins,
        stats,
        vocab_size=loaded.vocab_size,
        tokenizer=loaded.tokenizer,
        seed=config.model.seed,
    )
    method = None if plugins.proposer is None else plugins.proposer.name
    export_stats(stats, method or "none", REGISTRY)
    return Engine(core, loaded, caches, plugins, PeriodicLogLine(stats, method))


def _num_speculative_tokens(config: EngineConfig, capabilities: ProposerCapabilities) -> int:
    """As configured; a default is no reason to want more than the proposer can draft."""
    speculative = config.speculative
    if speculative is None:
        return 0
    most = capabilities.max_draft_tokens
    if most is None or "num_speculative_tokens" in speculative.model_fields_set:
        return speculative.num_speculative_tokens
    return min(speculative.num_speculative_tokens, most)


def _build_draft_policy(
    speculative: SpeculativeConfig,
    num_speculative_tokens: int,
    capabilities: ProposerCapabilities,
    measure: Callable[[], Mapping[int, float]],
) -> DraftPolicy:
    table = speculative.num_speculative_tokens_per_batch_size
    if table is not None or not speculative.adaptive:
        return FixedDrafts(table or [(1, 1, num_speculative_tokens)])
    return AdaptiveDrafts(
        num_speculative_tokens,
        VerifyCost(measure()),
        always_asked=capabilities.own_kv,
        sampled_drafts=capabilities.probs and speculative.verification == "rejection",
    )


def _load_proposer(
    config: EngineConfig, plugins: PluginManager, loaded: LoadedModel
) -> tuple[ProposerCapabilities, list[RoutedDraftModel]]:
    draft_models: list[RoutedDraftModel] = []
    proposer, speculative = plugins.proposer, config.speculative
    if proposer is None or speculative is None:
        return ProposerCapabilities(), draft_models

    def add_draft_model(name: str, module: torch.nn.Module, inputs: Mapping[str, Any]) -> RoutedDraftModel:
        draft_models.append(RoutedDraftModel(name, module, inputs))
        return draft_models[-1]

    target = Target(loaded, add_draft_model)
    capabilities = proposer.capabilities()
    check_capabilities(
        capabilities,
        target,
        proposer=proposer.name,
        distribution=proposer.distribution,
        num_speculative_tokens=_num_speculative_tokens(config, capabilities),
    )
    proposer.load_model(target, loaded.device)
    return capabilities, draft_models


def _route(
    module: torch.nn.Module,
    name: str,
    dummy_inputs: Mapping[str, Any],
    plugins: PluginManager,
    loaded: LoadedModel,
) -> RoutedModel:
    if loaded.weights is not None:
        # Of the target nothing is left to pack; a drafter's network keeps what it computes with.
        pack_layers(module, "float32")
    routed = RoutedModel.route(module, plugins.backends, name, dummy_inputs, loaded.device, loaded.dtype)
    if loaded.weights is not None:
        attention = {layer.module: layer.attention for layer in routed.layers if layer.attention is not None}
        fuse_layers(module, attention, dummy_inputs)
    return routed


def _build_scheduler(
    config: EngineConfig,
    loaded: LoadedModel,
    cache_plan: CachePlan,
    draft_limits: DraftLimits,
    capabilities: ProposerCapabilities,
) -> Scheduler:
    kv_cache = KVCacheManager(
        cache_plan.num_blocks,
        cache_plan.block_size,
        enable_prefix_caching=config.cache.enable_prefix_caching and cache_plan.prefix_caching,
        # Its own KV at a position depends on the token behind that position, which another prompt does not share.
        recompute_last_cached_block=capabilities.own_kv
        and bool(capabilities.hidden_states or capabilities.aux_hidden_layers),
    )
    return Scheduler(
        kv_cache,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        max_model_len=loaded.max_model_len,
        enable_chunked_prefill=config.scheduler.enable_chunked_prefill,
        drafts=Drafts(draft_limits),
    )


def _build_runner(
    config: EngineConfig,
    plugins: PluginManager,
    loaded: LoadedModel,
    target: RoutedModel,
    batch: InputBatch,
    capabilities: ProposerCapabilities,
) -> ModelRunner:
    speculative = config.speculative
    drafting = capture = None
    if plugins.proposer is not None and speculative is not None:
        drafting = Drafting(
            plugins.proposer,
            capabilities,
            speculative.on_proposer_error,
            batch,
            loaded.vocab_size,
            loaded.device,
        )
        if capabilities.hidden_states or capabilities.aux_hidden_layers:
            capture = HiddenStateCapture(
                loaded.model,
                hidden_states=capabilities.hidden_states,
                aux_hidden_layers=capabilities.aux_hidden_layers,
            )
    return ModelRunner(
        target,
        plugins.backends,
        batch,
        device=loaded.device,
        drafting=drafting,
        verification=speculative.verification if speculative else "coupled",
        capture=capture,
    )
