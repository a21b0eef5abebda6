"""Old names of config keys, for the error that names the new one."""

from __future__ import annotations

from typing import Final

RENAMED: Final = {
    "algorithm.clip_dual": "algorithm.clip_ratio_c",
    "algorithm.clip_high": "algorithm.clip_ratio_high",
    "algorithm.clip_low": "algorithm.clip_ratio_low",
    "algorithm.entropy_bonus": "algorithm.entropy_coef",
    "algorithm.filters.zero_variance": "algorithm.filters.drop_zero_variance_groups",
    "algorithm.gae.discount": "algorithm.gae.gamma",
    "algorithm.gae.smoothing": "algorithm.gae.lam",
    "algorithm.kl.coefficient": "algorithm.kl.coef",
    "algorithm.kl.where": "algorithm.kl.apply_to",
    "checkpoint.every": "checkpoint.interval",
    "checkpoint.keep": "checkpoint.keep_last",
    "checkpoint.url": "checkpoint.upload_url",
    "critic.apart": "critic.dedicated_gpus",
    "critic.node_feature": "critic.node_group",
    "data.overlong": "data.overlong_prompts",
    "dpo.chosen_nll": "dpo.sft_coef",
    "env.history": "env.context",
    "env.order": "env.schedule",
    "env.overrule_sampling": "env.ignore_request_sampling",
    "env.program": "env.agent_command",
    "env.program_at_once": "env.agent_concurrency",
    "env.program_rows": "env.agent_rows_per_process",
    "env.program_timeout_s": "env.agent_timeout_s",
    "eval.every": "eval.interval",
    "job.after": "job.depends_on",
    "job.hang_after_s": "job.heartbeat_timeout_s",
    "job.signal_lead_s": "job.checkpoint_lead_s",
    "policy.node_feature": "policy.node_group",
    "policy.share_prompts": "policy.prefix_sharing",
    "preflight.policy": "preflight.on_failure",
    "reference.node_feature": "reference.node_group",
    "reward.service.node_feature": "reward.service.node_group",
    "rm.centering": "rm.center_rewards_coef",
    "rollout.continuous": "rollout.inflight_weight_updates",
    "rollout.max_staleness": "rollout.max_off_policy_steps",
    "rollout.node_feature": "rollout.node_group",
    "rollout.probe_tolerance": "rollout.weight_check_tolerance",
}


def find_new_name(key: str) -> str | None:
    """Return the new name of a renamed key, also below data.sources.<name> and eval.sets.<name>.

    >>> find_new_name("env.order"), find_new_name("data.sources.games.env.order"), find_new_name("optim.lr")
    ('env.schedule', 'data.sources.games.env.schedule', None)
    """
    for old, new in RENAMED.items():
        if key == old or key.endswith(f".{old}"):
            return key.removesuffix(old) + new
    return None
