// SPDX-License-Identifier: Apache-2.0
#include "zero/config_keys.h"

#include <algorithm>
#include <string>

#include "tensor/edit_distance.h"
#include "tensor/error.h"

namespace tessera::zero {
namespace {

using enum KeyKind;
using enum ValueType;

// clang-format off
constexpr ConfigKey kKeys[] = {
  // Batch and run.
  {"train_batch_size", kPositive, kWorks, "", "samples of one update, over all ranks and micro-batches"},
  {"train_micro_batch_size_per_gpu", kPositive, kWorks, "", "samples of one rank in one forward pass"},
  {"gradient_accumulation_steps", kPositive, kWorks, "", "micro-batches of one update"},
  {"gradient_clipping", kNonNegative, kWorks, "", "bound of the global L2 norm of the gradients; 0: none"},
  {"steps_per_print", kCount, kWorks, "", "updates between two progress lines; 0: never"},
  {"wall_clock_breakdown", kBoolean, kWorks, "", "times of the phases of a step"},
  {"optimizer", kObject, kBlock, "", ""},
  {"optimizer.type", kText, kWorks, "", "name of the optimizer"},
  {"optimizer.params", kObject, kWorks, "", "its parameters"},
  {"optimizer.legacy_fusion", kBoolean, kNoEffect, "", "there is one implementation of each optimizer"},
  {"scheduler", kObject, kBlock, "", ""},
  {"scheduler.type", kText, kWorks, "", "name of the learning-rate schedule"},
  {"scheduler.params", kObject, kWorks, "", "its parameters"},
  {"tessera", kObject, kBlock, "", ""},
  {"tessera.reducer", kReducer, kWorks, "", "\"fast\", or \"canonical\" for the same bits at every stage"},
  {"tessera.keep_last_unit", kBoolean, kWorks, "", "keep the last unit of forward gathered for backward"},
  {"tessera.comm_timeout_s", kAboveZero, kWorks, "", "seconds of silence of a rank that end the run"},
  {"tessera.max_skipped_steps", kPositive, kWorks, "", "consecutive skips at a fixed loss scale that end the run"},

  // Precision.
  {"fp16", kObject, kBlock, "", ""},
  {"fp16.enabled", kBoolean, kWorks, "", "weights and computing in fp16, with a loss scale"},
  {"fp16.loss_scale", kNonNegative, kWorks, "", "0: dynamic; else the fixed loss scale"},
  {"fp16.initial_scale_power", kScalePower, kWorks, "", "the dynamic scale starts at 2 to this power"},
  {"fp16.loss_scale_window", kPositive, kWorks, "", "clean steps before the scale doubles"},
  {"fp16.hysteresis", kPositive, kWorks, "", "overflows until the scale is halved"},
  {"fp16.consecutive_hysteresis", kBoolean, kWorks, "", "refill the hysteresis at every clean step"},
  {"fp16.min_loss_scale", kAboveZero, kWorks, "", "the scale goes no lower: an overflow there ends the run"},
  {"fp16.auto_cast", kBoolean, kOneValue, "false", "inputs are not cast, pass them in the dtype of the weights"},
  {"fp16.fp16_master_weights_and_grads", kBoolean, kRefused, "false", "master weights are fp32"},
  {"bf16", kObject, kBlock, "", ""},
  {"bfloat16", kObject, kAlias, "", "bf16"},
  {"bf16.enabled", kBoolean, kWorks, "", "weights and computing in bf16"},
  {"bf16.check_grad_overflow", kBoolean, kWorks, "", "skip a step whose gradients are not finite"},
  {"bf16.immediate_grad_update", kBoolean, kNoEffect, "", "gradients are added to the accumulator as they are made"},
  {"bf16.bf16_master_weights_and_grads", kBoolean, kRefused, "false", "master weights have the precision of fp32"},
  {"bf16.bf16_optimizer_states", kBoolean, kRefused, "false", "optimizer states are fp32"},
  {"data_types", kObject, kBlock, "", ""},
  {"data_types.param_dtype", kDTypeOrF64, kWorks, "", "dtype of weights and computing, instead of fp16 and bf16"},
  {"data_types.grad_accum_dtype", kDType, kWorks, "", "dtype in which gradients of several micro-batches are added"},
  {"data_types.buffer_dtype", kText, kRefused, "", "buffers have the dtype of the weights"},
  {"communication_data_type", kDTypeOrF64, kWorks, "", "dtype of gradients between ranks"},
  {"torch_autocast", kAny, kRefused, "enabled=false", "a model computes in one dtype; use fp16 or bf16"},
  {"amp", kAny, kRefused, "enabled=false", "NVIDIA Apex has no counterpart here; use fp16 or bf16"},

  // ZeRO.
  {"zero_optimization", kObject, kBlock, "", ""},
  {"zero_optimization.stage", kStage, kWorks, "", "0: replicated; 1: states sharded; 2: gradients too; 3: weights too"},
  {"zero_optimization.reduce_bucket_size", kPositive, kWorks, "", "elements of one reduction of gradients"},
  {"zero_optimization.allgather_bucket_size", kPositive, kWorks, "", "elements of one gather of updated weights"},
  {"zero_optimization.overlap_comm", kBoolean, kWorks, "", "communicate while computing"},
  {"zero_optimization.sub_group_size", kPositive, kWorks, "", "elements that one piece of the update works on"},
  {"zero_optimization.stage3_prefetch_bucket_size", kCount, kWorks, "", "elements gathered ahead; 0: none"},
  {"zero_optimization.stage3_param_persistence_threshold", kCount, kWorks, "", "smaller parameters stay gathered"},
  {"zero_optimization.stage3_model_persistence_threshold", kCount, kWorks, "", "bound of the sum of those elements"},
  {"zero_optimization.stage3_max_live_parameters", kCount, kWorks, "", "bound of elements gathered at once"},
  {"zero_optimization.stage3_max_reuse_distance", kCount, kWorks, "", "keep what is used again within these elements"},
  {"zero_optimization.prefetch_bucket_size", kAny, kAlias, "", "zero_optimization.stage3_prefetch_bucket_size"},
  {"zero_optimization.param_persistence_threshold", kAny, kAlias, "",
   "zero_optimization.stage3_param_persistence_threshold"},
  {"zero_optimization.model_persistence_threshold", kAny, kAlias, "",
   "zero_optimization.stage3_model_persistence_threshold"},
  {"zero_optimization.max_live_parameters", kAny, kAlias, "", "zero_optimization.stage3_max_live_parameters"},
  {"zero_optimization.max_reuse_distance", kAny, kAlias, "", "zero_optimization.stage3_max_reuse_distance"},
  {"zero_optimization.contiguous_gradients", kBoolean, kNoEffect, "",
   "gradients are always written into the buffer that is reduced"},
  {"zero_optimization.reduce_scatter", kBoolean, kNoEffect, "",
   "the stage decides between all-reduce and reduce-scatter"},
  {"zero_optimization.use_multi_rank_bucket_allreduce", kBoolean, kNoEffect, "",
   "the stage decides between all-reduce and reduce-scatter"},
  {"zero_optimization.allgather_partitions", kBoolean, kNoEffect, "", "updated weights are always gathered"},
  {"zero_optimization.round_robin_gradients", kBoolean, kNoEffect, "",
   "it spreads copies to the host, and there are none"},
  {"zero_optimization.load_from_fp32_weights", kBoolean, kOneValue, "true",
   "masters are restored, never made from low-precision weights"},
  {"zero_optimization.ignore_unused_parameters", kBoolean, kOneValue, "true",
   "a parameter without a gradient counts as one with gradient zero"},
  {"zero_optimization.legacy_stage1", kBoolean, kNoEffect, "", "there is one implementation of stage 1"},
  {"zero_optimization.elastic_checkpoint", kBoolean, kNoEffect, "", "DeepSpeed dropped it as well"},
  {"zero_optimization.cpu_offload", kBoolean, kRefused, "false", "offload is not here yet, states stay on the device"},
  {"zero_optimization.cpu_offload_params", kBoolean, kRefused, "false",
   "offload is not here yet, weights stay on the device"},
  {"zero_optimization.cpu_offload_use_pin_memory", kBoolean, kNoEffect, "", "nothing is offloaded"},
  {"zero_optimization.offload_optimizer", kAny, kRefused, "device=none",
   "offload is not here yet, states stay on the device"},
  {"zero_optimization.offload_param", kAny, kRefused, "device=none",
   "offload is not here yet, weights stay on the device"},
  {"zero_optimization.zenflow", kAny, kRefused, "", "it belongs to offload, which is not here yet"},
  {"zero_optimization.override_module_apply", kBoolean, kNoEffect, "", "no function of a module is replaced"},
  {"zero_optimization.enable_sanity_checks", kBoolean, kNoEffect, "", "checks cannot be switched"},
  {"zero_optimization.log_trace_cache_warnings", kBoolean, kNoEffect, "", "there is no cache of traces to warn about"},
  {"zero_optimization.memory_efficient_linear", kBoolean, kNoEffect, "",
   "no layer keeps a gathered weight for backward"},
  {"zero_optimization.pipeline_loading_checkpoint", kBoolean, kNoEffect, "", "it only changes how long loading takes"},
  {"zero_optimization.stage3_gather_16bit_weights_on_model_save", kBoolean, kNoEffect, "", "saving needs no switch"},
  {"zero_optimization.stage3_gather_fp16_weights_on_model_save", kAny, kAlias, "",
   "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
  {"zero_optimization.gather_16bit_weights_on_model_save", kAny, kAlias, "",
   "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
  {"zero_optimization.stage3_module_granularity_threshold", kCount, kNoEffect, "",
   "the model's units are what is gathered"},
  {"zero_optimization.module_granularity_threshold", kAny, kAlias, "",
   "zero_optimization.stage3_module_granularity_threshold"},
  {"zero_optimization.leaf_module", kObject, kNoEffect, "", "the model's units are what is gathered"},
  {"zero_optimization.stage3_use_all_reduce_for_fetch_params", kBoolean, kNoEffect, "",
   "weights are always all-gathered"},
  {"zero_optimization.use_all_reduce_for_fetch_params", kAny, kAlias, "",
   "zero_optimization.stage3_use_all_reduce_for_fetch_params"},
  {"zero_optimization.stage3_allgather_sequential", kBoolean, kNoEffect, "", "a unit is one buffer and one gather"},
  {"zero_optimization.allgather_sequential", kAny, kAlias, "", "zero_optimization.stage3_allgather_sequential"},
  {"zero_optimization.zero_hpz_partition_size", kCount, kRefused, "0|1",
   "there is no second copy of the weights per node"},
  {"zero_optimization.zero_quantized_weights", kBoolean, kRefused, "false", "what is sent is not quantized"},
  {"zero_optimization.zero_quantized_nontrainable_weights", kBoolean, kRefused, "false",
   "what is sent is not quantized"},
  {"zero_optimization.zero_quantized_gradients", kBoolean, kRefused, "false", "what is sent is not quantized"},
  {"zero_optimization.zeropp_loco_param", kAny, kRefused, "", "what is sent is not quantized"},
  {"zero_optimization.mics_shard_size", kInteger, kRefused, "-1|0", "all ranks form one group of shards"},
  {"zero_optimization.mics_hierarchical_params_gather", kBoolean, kRefused, "false",
   "all ranks form one group of shards"},
  {"zero_optimization.save_muon_momentum_buffer_in_memory", kBoolean, kRefused, "false", "there is no Muon optimizer"},

  // The rest of DeepSpeed's top level.
  {"managed_gradient_accumulation", kBoolean, kOneValue, "true",
   "gradient_accumulation_steps decides where an update is"},
  {"prescale_gradients", kBoolean, kNoEffect, "", "the mean over the ranks is the same wherever the division is done"},
  {"gradient_predivide_factor", kAboveZero, kOneValue, "1", "the division by the number of ranks is not split"},
  {"gradient_allreduce_op", kText, kOneValue, "mean", "gradients are averaged over the ranks"},
  {"seq_parallel_communication_data_type", kText, kNoEffect, "", "sequences are not split over ranks"},
  {"sparse_gradients", kBoolean, kOneValue, "false", "gradients of embeddings are dense"},
  {"disable_allgather", kBoolean, kNoEffect, "", "updated weights are always gathered"},
  {"dataloader_drop_last", kBoolean, kNoEffect, "", "the data loader is not made from this file"},
  {"memory_breakdown", kBoolean, kNoEffect, "", "memory is not printed per phase"},
  {"dump_state", kBoolean, kNoEffect, "", "the state of the engine is not printed"},
  {"zero_allow_untested_optimizer", kBoolean, kNoEffect, "", "every optimizer here works at every stage"},
  {"zero_force_ds_cpu_optimizer", kBoolean, kNoEffect, "", "an optimizer is the same on every device"},
  {"vocabulary_size", kInteger, kNoEffect, "", "it only asks for a warning"},
  {"graph_harvesting", kBoolean, kNoEffect, "", "it only changes how kernels are started"},
  {"log_level", kText, kNoEffect, "", "there are no levels of logging"},
  {"timers", kObject, kBlock, "", ""},
  {"timers.throughput", kObject, kBlock, "", ""},
  {"timers.throughput.enabled", kBoolean, kNoEffect, "", "the progress line has its own timer"},
  {"timers.throughput.synchronized", kBoolean, kNoEffect, "", "the progress line has its own timer"},
  {"aio", kObject, kNoEffect, "", "nothing is offloaded to a disk"},
  {"checkpoint", kAny, kRefused, "", "checkpoints are not here yet"},
  {"nebula", kAny, kRefused, "enabled=false", "checkpoints are not here yet"},
  {"datastates_ckpt", kAny, kRefused, "", "checkpoints are not here yet"},
  {"activation_checkpointing", kAny, kRefused, "", "recomputing belongs to the model; set its option recompute"},
  {"flops_profiler", kAny, kRefused, "enabled=false", "there is no profiler yet"},
  {"csv_monitor", kAny, kRefused, "enabled=false", "the trainers write metrics.csv into their run folder"},
  {"tensorboard", kAny, kRefused, "enabled=false", "metrics are not written to TensorBoard"},
  {"wandb", kAny, kRefused, "enabled=false", "metrics are not sent to services"},
  {"comet", kAny, kRefused, "enabled=false", "metrics are not sent to services"},
  {"comms_logger", kAny, kRefused, "enabled=false", "collectives are not logged from this file yet"},
  {"tensor_parallel", kAny, kRefused, "autotp_size=0", "tensors of one layer are not split over ranks"},
  {"pipeline", kAny, kRefused, "", "layers are not split over ranks"},
  {"sequence_parallel_size", kPositive, kRefused, "1", "sequences are not split over ranks"},
  {"expert_parallel", kAny, kRefused, "enabled=false", "there are no experts"},
  {"data_efficiency", kAny, kRefused, "enabled=false", "samples come in the loader's order"},
  {"curriculum_learning", kAny, kRefused, "enabled=false", "samples come in the loader's order"},
  {"progressive_layer_drop", kAny, kRefused, "enabled=false", "every layer runs in every step"},
  {"elasticity", kAny, kRefused, "enabled=false", "the batch is what the three batch fields say"},
  {"autotuning", kAny, kRefused, "enabled=false", "nothing is tuned by trial runs"},
  {"compression_training", kAny, kRefused, "", "weights are neither quantized nor pruned"},
  {"quantize_training", kAny, kRefused, "enabled=false", "weights are neither quantized nor pruned"},
  {"weight_quantization", kAny, kRefused, "", "weights are neither quantized nor pruned"},
  {"eigenvalue", kAny, kRefused, "enabled=false", "weights are neither quantized nor pruned"},
  {"sparse_attention", kAny, kRefused, "", "attention is dense; the model chooses it"},
  {"hybrid_engine", kAny, kRefused, "enabled=false", "there is no engine for generating text beside training"},
  {"compile", kAny, kRefused, "deepcompile=false", "models are not compiled"},
};

// What integrations compute from their own arguments.
constexpr std::string_view kAutoElsewhere[] = {
  "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
  "fp16.enabled", "bf16.enabled", "zero_optimization.reduce_bucket_size",
  "zero_optimization.stage3_prefetch_bucket_size", "zero_optimization.stage3_param_persistence_threshold",
  "zero_optimization.stage3_gather_16bit_weights_on_model_save",
};
// clang-format on

std::string WithoutUnderscores(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c != '_' && c != '-') out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return out;
}

// The parts of "a.b.c" before and after the last dot.
std::string_view BlockOf(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}
std::string_view NameOf(std::string_view path) { return path.substr(path.rfind('.') + 1); }

}  // namespace

std::span<const ConfigKey> ConfigKeys() { return kKeys; }

const ConfigKey* FindConfigKey(std::string_view path) {
  const auto found =
      std::find_if(std::begin(kKeys), std::end(kKeys), [&](const auto& key) { return key.path == path; });
  return found == std::end(kKeys) ? nullptr : found;
}

bool IsAutoElsewhere(std::string_view path) {
  return path.starts_with("optimizer.params.") || path.starts_with("scheduler.params.") ||
         std::find(std::begin(kAutoElsewhere), std::end(kAutoElsewhere), path) != std::end(kAutoElsewhere);
}

std::string SuggestKey(std::string_view block, std::string_view name) {
  constexpr size_t kLongest = 80;  // longer ones are no misspelling, and comparing them takes time
  if (name.size() > kLongest) return "";
  const std::string plain = WithoutUnderscores(name);
  const ConfigKey* nearest = nullptr;
  size_t least = std::max<size_t>(1, plain.size() / 3) + 1;
  for (const ConfigKey& key : kKeys) {  // in the same block: the nearest spelling
    if (BlockOf(key.path) != block) continue;
    const size_t distance = EditDistance(plain, WithoutUnderscores(NameOf(key.path)));
    if (distance >= least) continue;
    least = distance;
    nearest = &key;
  }
  if (nearest != nullptr) return Str(" did you mean '", NameOf(nearest->path), "'?");
  for (const ConfigKey& key : kKeys) {  // in another block: the very name
    if (WithoutUnderscores(NameOf(key.path)) == plain) return Str(" did you mean '", key.path, "'?");
  }
  return "";
}

}  // namespace tessera::zero
