import re

import pytest

from slurm_rl.config.load import load_config
from slurm_rl.errors import ConfigError

DEMO = ["+exp=demo"]
GPUS = [*DEMO, "+cluster=nvidia_a100", "cluster.gpus_per_node=8"]
CPU = [*DEMO, "+cluster=slurm_cpu"]
SHARED = [*DEMO, "+cluster=nvidia_a100", "cluster.slurm.exclusive=false"]
SFT, RM, DPO, COMMAND = (["+exp=sft_tiny"], ["+exp=rm_tiny"], ["+exp=dpo_tiny"], ["+exp=command"])
GAMES = "+data.sources.games"
MIXED = [*DEMO, "data.train=''", "+data.sources.sums.train=addition", f"{GAMES}.train=games.jsonl"]
AHEAD = "rollout.max_off_policy_steps=1"
WAVES, FREE = "{name: g.py:G, turn_tokens: 1}", "{name: g.py:G, turn_tokens: 1, schedule: async}"
TOOLS = "{tools: t.py, turn_tokens: 1, schedule: async}"
PROGRAM = "{agent_command: [python, -m, agent], turn_tokens: 1}"

ALGORITHM = [
    (["algorithm.correction.kind=tis"], "algorithm.correction.kind.*token_tis"),
    (["algorithm.filters.min_tokens=4", "algorithm.filters.max_tokens=3"], "filters.max_tokens.*3 < 4"),
    (["algorithm.clip_ratio_c=1.0"], "algorithm.clip_ratio_c.*greater than 1; got 1.0"),
    (["optim.lr=inf"], "optim.lr.*finite.*inf"),
    (["critic.optim.betas=[0.9,nan]"], "critic.optim.betas.1.*finite.*nan"),
    (["algorithm.kl.coef=0.1", "algorithm.kl.estimator=k1"], "kl.estimator.*'k1'.*algorithm.kl.apply_to=reward"),
    (["algorithm.kl.bias_correction=true"], "algorithm.kl.bias_correction needs.*got coef=0.0"),
    (["+algorithm=ppo", "algorithm.kl.bias_correction=true"], "bias_correction.*apply_to='reward'.*estimator='k1'"),
    (
        [
            "algorithm.advantage=reinforce_pp",
            "algorithm.group_size=1",
            "algorithm.filters.drop_zero_variance_groups=true",
        ],
        "algorithm.filters.drop_zero_variance_groups.*algorithm.group_size=8",
    ),
    (["algorithm.filters.function=group_norm"], "filters.function must be file.py:name; got 'group_norm'"),
    (["reward.function=group_norm"], "reward.function must be file.py:name; got 'group_norm'"),
    (["+reward.verifiers.no_such=1"], "must be one of arithmetic, math, code, format; got 'no_such'"),
]
SAMPLING = [
    (["rollout.inflight_weight_updates=true"], "rollout.inflight_weight_updates.*rollout.max_off_policy_steps=1"),
    (["rollout.stop=['']"], "rollout.stop"),
    (["rollout.stop=x"], "rollout.stop.*x"),
    (["rollout.temperature=0.005"], "temperature must be at least 0.01"),
    (["+eval.sets.big.data=addition", "++eval.sets.big.temperature=0.005"], "temperature must be at least 0.01"),
    (["+rollout.engine_args.dtype=half"], "rollout.engine_args.*dtype.*model.dtype"),
    (["+rollout.engine_args.logprobs_mode=raw_logprobs"], "rollout.engine_args.*logprobs_mode.*leave it out"),
    *(
        ([word, "algorithm.kl.coef=0.1"], r"a KL term needs.*repetition_penalty.*kl\.coef=0\.1.*Next")
        for word in ("rollout.top_p=0.9", "rollout.top_k=20", "rollout.min_p=0.05", "rollout.repetition_penalty=1.1")
    ),
    *(
        ([f"rollout.{name}={value}", "algorithm.correction.kind=null"], f"kind must not be null.*{name}={value}.*=auto")
        for name, value in (("top_p", 0.9), ("top_k", 20), ("repetition_penalty", 1.1))
    ),
]
SOURCES = [
    (["data.train=addition"], "data.train and data.eval are not used with data.sources"),
    (["+data.sources.more.weight=2"], "data.sources.more.train must name its rows"),
    (["+data.sources.sums.weight=2000"], "data.sources.games.weight must be at least 0.001 of the sum"),
    (["+data.sources.sums.max_tokens=6"], "data.sources.sums: max_tokens must be at most rollout.max_tokens"),
    (["+data.sources.sums.env={max_turns: 3}"], "data.sources.sums: the keys of env need env.name, "),
    (["data.chat_template=false", "+data.sources.sums.system=Hi"], "sources.sums.system needs data.chat_template=true"),
    (["data.chat_template=false", "data.system=Hi"], "system needs data.chat_template=true"),
    (["+data.sources.sums.wait=1"], "data.sources.sums.wait"),
    ([f"{GAMES}.env={FREE}", AHEAD], "games: with rollout.max_off_policy_steps above 0, env.schedule=async needs"),
    ([f"{GAMES}.env={TOOLS}", AHEAD, "data.chat_template=true"], "games: with rollout.max_off_policy_steps above 0"),
    (
        [f"{GAMES}.env={WAVES}", AHEAD, "rollout.inflight_weight_updates=true"],
        "games: with rollout.*Next: env.schedule",
    ),
    ([f"{GAMES}.env={WAVES}", f"+data.sources.sums.env={FREE}"], "env.schedule must be the same for all environments"),
    (
        [f"{GAMES}.env={PROGRAM}", AHEAD, "rollout.inflight_weight_updates=true"],
        "games: env.agent_command needs rollout.inflight_weight_updates=false",
    ),
    ([f"{GAMES}.temperature=warm"], "data.sources.games.temperature.*number.*got .?warm"),
    ([f"{GAMES}.temperature=0.005"], "data.sources.games: temperature must be at least 0.01.*got 0.005. Next"),
    ([f"{GAMES}.num_samples=2"], "data.sources.games.num_samples"),
    ([f"{GAMES}.top_k=7", "algorithm.kl.coef=0.1"], r"data\.sources\.games: a KL term needs.*Next"),
    ([f"{GAMES}.top_k=7", "algorithm.correction.kind=null"], r"kind must not be null.*of data\.sources\.games"),
]
SUPERVISED = [
    ([*RM, "data.image_key=image"], "data.image_key is not for task=rm"),
    ([*DPO, "dpo.loss=ipo", "dpo.label_smoothing=0.1"], "dpo.label_smoothing is for dpo.loss="),
    ([*DPO, "dpo.loss=exo_pair"], "needs dpo.label_smoothing > 0"),
    ([*DPO, "dpo.loss=bco_pair", "dpo.reference=none"], "dpo.reference=none adds a term to both answers"),
    ([*DPO, "dpo.loss=apo_zero", "dpo.divergence=forward_kl"], "dpo.divergence adds a term to both answers"),
    ([*DPO, "dpo.reference=none", "dpo.divergence=js_divergence"], "is a distance to a reference"),
    ([*RM, "reward.model.normalize=true"], "reward.model.normalize is for reward.model.path"),
    ([*SFT, "supervised.patience=1", "data.num_eval=0"], "patience counts evaluations.*got 50 and 0"),
    ([*SFT, "supervised.patience=1", "eval.interval=0"], "patience counts evaluations.*got 0 and 500"),
    ([*SFT, "data.chat_template=false", "+data.chat_template_kwargs.a=1"], r"kwargs needs data\.chat_template=true"),
]
UNUSED = [
    ([*SFT, "rollout.max_tokens=8"], "rollout.max_tokens=8.*=grpo, here it is supervised.max_tokens"),
    ([*SFT, "eval.greedy=false"], "eval.greedy=False"),
    ([*SFT, "logging.samples_per_step=1"], "samples_per_step.*read with task=grpo"),
    ([*SFT, "data.train=''", "+data.sources.sums.train=addition"], r"task=sft does not read data\.sources"),
    ([*DPO, "sft.neftune_alpha=5"], "task=dpo does not read sft.neftune_alpha.*read with task=sft"),
    ([*RM, "+algorithm=dapo"], "algorithm.clip_ratio_high.*algorithm.overlong.buffer_share=0.2"),
    ([*DEMO, "supervised.batch_size=8"], "supervised.batch_size=8.*task=sft, rm, dpo"),
    ([*DEMO, "data.chosen_key=better"], "data.chosen_key=better.*task=rm, dpo"),
    ([*COMMAND, "model.path=a", "optim.lr=1"], "task=command does not read model.path, optim.lr"),
    ([*COMMAND, "seed=1", "checkpoint.keep_last=9"], "task=command does not read seed, checkpoint.keep_last"),
]
EXPERTS = [*DEMO, "+lora=all_linear", "model.lora.target_parameters=[experts.down_proj]"]
UNKNOWN = [
    ([*DEMO, "optim.lrr=1"], r"did you mean optim.lr\?"),
    ([*DEMO, "cluster.env.FOO=1"], r"add an entry: \+cluster.env.FOO=<value>"),
    ([*DEMO, "cluster.env={FOO:1}"], r"add an entry: \+cluster.env.<name>=<value>"),
    ([*DEMO, "cluster.slurm.extra={switches: 1}"], r"\+cluster.slurm.extra.<name>"),
    (["model=hf", "model.path=/m", "model.lora.rank=2"], "model.lora is null with these groups"),
    (["exp=command", "external.argv=[a]", "external.model=m"], r"where it has, write \+external.model=<value>"),
    ([*MIXED, "data.sources.sums.env.timeout_s=9"], r"write \+data.sources.sums.env.timeout_s=<value>"),
    ([*MIXED, "+data.sources.sums.env.timout_s=9"], "did you mean"),
    ([*DEMO, "model.lora.rank=3"], "choose a group that has model.lora"),
    ([*EXPERTS, "model.lora.export=adapter"], "target_parameters needs model.lora.export=merged"),
    (
        [*EXPERTS, "model.lora.target_parameters=['']"],
        r"target_parameters must not have blank names; got \[''\]. Next: remove",
    ),
    (
        [*EXPERTS, "model.lora.target_modules=[' ']"],
        r"target_modules must not have blank names; got \[' '\]. Next: remove",
    ),
    ([*EXPERTS, "model.lora.target_modules=[]"], r"got \[\]. Next: model\.lora\.target_modules=all-linear"),
    ([*EXPERTS, "model.lora.target_modules=q_proj"], r"s: must be a list.*Next: 'model\.lora\.target_modules=\[q_proj"),
    (
        [*EXPERTS, "model.lora.target_parameters=null"],
        r"list; got None\. Next: .*rs=\[<value>.*parameters=\[\]' for none",
    ),
    ([*EXPERTS, "policy.backend=deepspeed", "policy.zero_stage=3"], "which ZeRO-3 splits; got policy.zero_stage=3"),
    ([*DEMO, "cluster.slurm.time=3"], "set job.time_limit"),
    ([*CPU, "job.time_limit=2"], r"longer than job\.checkpoint_lead_s; got 2 min and 120 s.*lead_s=40"),
    ([*DEMO, "cluster.slurm.mem=3"], "set cluster.mem_gb_per_node"),
    ([*DEMO, "cluster.slurm.partiton=x"], "did you mean cluster.slurm.partition"),
    ([*DEMO, "cluster.slurm.begin=x"], r"\+cluster.slurm.extra.begin=<value>"),
    ([*DEMO, "cluster=nvidia_h10"], "cluster has no preset of this name; got nvidia_h10.*did you mean nvidia_h100"),
    ([*DEMO, "run_dir=a(b"], "quote values"),
]
SLURM = [
    ([*GPUS, "cluster.slurm.gres='gpu:a100:4'"], "cluster.gpus_per_node and cluster.slurm.gres.* 8 and 4 on each"),
    ([*GPUS, "cluster.slurm.gres='nvme:1'"], "cluster.slurm.gres.*8 and 0 on each"),
    ([*GPUS, "+cluster.slurm.extra.gpus_per_node='a100:4'"], "extra.gpus_per_node.*8 and 4.*gpus_per_node=4"),
    ([*GPUS, "+cluster.slurm.extra.gpus-per-node=4"], "extra.gpus_per_node.*8 and 4"),
    ([*GPUS, "+cluster.slurm.extra.gpus=8", "cluster.num_nodes=2"], "extra.gpus must.*8 and 4"),
    ([*GPUS, "+cluster.slurm.extra.gpus_per_task=2"], "extra.gpus_per_task.*8 and 2"),
    ([*CPU, "+cluster.slurm.extra.mem_per_cpu=1G"], "mem_gb_per_node=8 and cluster.slurm.extra.mem_per_cpu=1G"),
    ([*GPUS, "+cluster.slurm.extra.mem-per-gpu=9G"], "mem_gb_per_node=all and cluster.slurm.extra.mem_per_gpu"),
    ([*CPU, "+cluster.slurm.extra.cpus_per_gpu=4"], "cpus_per_node=2 and cluster.slurm.extra.cpus_per_gpu=4"),
    ([*SHARED, "cluster.mem_gb_per_node=64"], "exclusive=false.*cluster.cpus_per_node=null"),
    ([*SHARED, "cluster.cpus_per_node=8"], "exclusive=false.*cluster.mem_gb_per_node=all"),
]
CASES = [
    *(([*DEMO, *words], message) for words, message in (*ALGORITHM, *SAMPLING)),
    *(([*MIXED, *words], message) for words, message in SOURCES),
    *(*SUPERVISED, *UNUSED, *UNKNOWN, *SLURM),
]


@pytest.mark.parametrize(("words", "message"), CASES, ids=[" ".join(words)[-60:] for words, _ in CASES])
def test_load_config_refuses_and_names_key(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(words)
    text = str(caught.value)
    assert re.search(message, text, re.DOTALL), text
    assert "Config search path" not in text


def test_load_config_names_all_invalid_fields_at_once() -> None:
    names = ["algorithm.entropy_coef=-1", "policy.logprob_chunk_tokens=0", "trainer.num_epochs=0"]
    with pytest.raises(ConfigError) as caught:
        load_config([*DEMO, *names])
    assert all(name.partition("=")[0] in str(caught.value) for name in names)


@pytest.mark.parametrize(
    "words",
    [
        ["algorithm.kl.estimator=k1"],
        ["algorithm.kl.coef=0.1", "algorithm.kl.estimator=k1", "algorithm.kl.apply_to=reward"],
        ["algorithm.correction.kind=null", "rollout.stop=[x]", "rollout.temperature=0.5"],
        ["cluster.slurm.exclusive=false"],
    ],
)
def test_load_config_accepts_keys_without_effect_on_rule(words: list[str]) -> None:
    load_config([*DEMO, *words])
