"""The nearest key for one that does not exist: a misspelling, or the name in another framework.

`OTHER_NAMES` knows transformers, TRL, verl, OpenRLHF, AReaL and prime-rl. Only the last part of a name counts,
such as `n` of verl's `actor_rollout_ref.rollout.n`. Names that are the same here are found in any section.
"""

import difflib
from collections.abc import Collection

OTHER_NAMES = {
    "run.name": "run_name experiment_name trial_name exp_name",
    "run.directory": "output_dir save_path default_local_dir fileroot ckpt_path output_path",
    "model.path": (
        "model_name_or_path model_name model pretrain model_path model_id base_model pretrained_model_name_or_path"
    ),
    "lora.rank": "lora_rank lora_r",
    "lora.alpha": "lora_alpha",
    "lora.targets": "target_modules lora_target_modules",
    "data.path": "train_files train_file dataset_name dataset prompt_data dataset_path train_data train_dataset",
    "data.held_out_path": "val_files eval_dataset eval_data validation_file valid_dataset test_files",
    "data.template": "prompt_template input_template prompt_key input_key",
    "data.answer": "label_key answer_key",
    "data.use_chat_template": "apply_chat_template",
    "data.max_prompt_tokens": "max_prompt_length prompt_max_len max_prompt_len",
    "sampling.group_size": (
        "n num_generations n_samples_per_prompt n_samples num_return_sequences rollouts_per_example "
        "num_samples_per_prompt rollout_n"
    ),
    "sampling.max_completion_tokens": (
        "max_completion_length max_new_tokens max_response_length generate_max_len max_tokens response_length"
    ),
    "sampling.stop": "stop_strings stop_sequences stop_words",
    "engine.backend": "rollout_backend inference_backend",
    "engine.num_workers": "vllm_num_engines num_rollout_workers rollout_num_workers num_engines",
    "engine.num_slots": "max_num_seqs max_concurrent_rollouts max_running_requests",
    "engine.server_arguments": (
        "tensor_parallel_size tensor_model_parallel_size vllm_tensor_parallel_size gpu_memory_utilization "
        "vllm_gpu_memory_utilization vllm_arguments"
    ),
    "engine.server_python": "vllm_python",
    "reward.grader": (
        "reward_funcs reward_fn reward_function custom_reward_function remote_rm_url reward_manager"
    ),
    "reward.overlong_buffer_tokens": "overlong_buffer_len overlong_tokens",
    "buffer.max_staleness": (
        "max_head_offpolicyness max_off_policy_steps max_async_level async_level staleness_threshold "
        "max_steps_off_policy"
    ),
    "objective.preset": "algorithm loss_type",
    "objective.advantage": "adv_estimator advantage_estimator",
    "objective.clip_low": (
        "epsilon clip_ratio eps_clip cliprange clip_range clip_ratio_low epsilon_low eps_clip_low"
    ),
    "objective.clip_high": "epsilon_high clip_ratio_high eps_clip_high",
    "objective.dual_clip": "clip_ratio_c c_clip",
    "objective.weight_cap": "tis_imp_ratio_cap behav_imp_weight_cap vllm_importance_sampling_cap",
    "objective.aggregation": "loss_agg_mode",
    "objective.kl_coefficient": "beta kl_coef init_kl_coef kl_loss_coef kl_ctl kl_beta kl_coeff",
    "objective.entropy_coefficient": "entropy_coeff entropy_coef entropy_loss_coef",
    "objective.dynamic_sampling": "dynamic_filtering filter_groups",
    "objective.gae_gamma": "gamma discount",
    "objective.gae_lambda": "lam lambd",
    "objective.value_coefficient": "vf_coef value_loss_coef vf_coeff",
    "train.num_steps": (
        "max_steps total_steps total_training_steps total_train_steps num_train_epochs num_epochs "
        "total_epochs total_train_epochs num_episodes epochs num_train_steps train_steps"
    ),
    "train.prompts_per_step": (
        "batch_size train_batch_size per_device_train_batch_size rollout_batch_size gen_batch_size "
        "global_batch_size"
    ),
    "train.num_minibatches": (
        "ppo_n_minibatches ppo_mini_batch_size num_iterations ppo_epochs mini_batch_size "
        "steps_per_generation num_mini_batches"
    ),
    "train.micro_batch_tokens": (
        "gradient_accumulation_steps micro_train_batch_size ppo_micro_batch_size_per_gpu "
        "ppo_max_token_len_per_gpu max_tokens_per_mb micro_batch_size"
    ),
    "train.recompute_activations": (
        "gradient_checkpointing enable_gradient_checkpointing activation_checkpointing"
    ),
    "train.lr": "learning_rate actor_learning_rate actor_lr",
    "train.lr_schedule": "lr_scheduler_type lr_scheduler lr_warmup_type lr_decay_style warmup_style",
    "train.warmup_updates": (
        "warmup_steps warmup_ratio lr_warmup_steps lr_warmup_ratio lr_warmup_steps_ratio "
        "warmup_steps_proportion num_warmup_steps"
    ),
    "train.adam_eps": "adam_epsilon eps",
    "train.max_grad_norm": "max_norm grad_clip clip_grad gradient_clipping clip_grad_norm",
    "train.num_ranks": "n_gpus_per_node nproc_per_node world_size actor_num_gpus_per_node",
    "train.dtype": "bf16 fp16 torch_dtype param_dtype mixed_precision",
    "eval.every_steps": "eval_steps test_freq eval_freq eval_interval val_every eval_every",
    "eval.num_samples": "eval_n_samples_per_prompt num_eval_samples",
    "checkpoint.every_steps": "save_steps save_freq save_interval save_every checkpoint_interval",
    "checkpoint.keep": "save_total_limit max_ckpt_num max_actor_ckpt_to_keep keep_last",
}
"""The other names of each of our keys, separated by spaces."""
_OURS = {other: key for key, others in OTHER_NAMES.items() for other in others.split()}


def nearest(key: str, known: Collection[str]) -> list[str]:
    """The nearest of the known keys (and sections, which have no dot), if any.

    In this order: the same letters, a slip of one letter, another framework's name, the right name in another
    section, a misspelt key, a misspelt name in another section.
    """
    name = key.rpartition(".")[2]
    by_letters = {_letters(candidate): candidate for candidate in known}
    if _letters(key) in by_letters:
        return [by_letters[_letters(key)]]
    very_close = difflib.get_close_matches(key, known, n=1, cutoff=0.9)
    elsewhere = name.replace("-", "_").lower()
    if very_close or elsewhere in _OURS:
        return very_close or [_OURS[elsewhere]]
    by_name: dict[str, list[str]] = {}
    for candidate in known:
        if "." in candidate:
            by_name.setdefault(candidate.rpartition(".")[2], []).append(candidate)
    close_keys = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    if name not in by_name and close_keys:
        return close_keys
    close_names = [name] if name in by_name else difflib.get_close_matches(name, by_name, n=1, cutoff=0.75)
    candidates = [candidate for close in close_names for candidate in by_name[close]]
    # lr and path occur in several sections; [sft] is the least used.
    candidates = [candidate for candidate in candidates if not candidate.startswith("sft.")] or candidates
    return difflib.get_close_matches(key, candidates, n=1, cutoff=0.0)


def _letters(key: str) -> str:
    """The key without separators: topk is top_k."""
    return "".join(character for character in key.lower() if character.isalnum())
